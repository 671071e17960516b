#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/flat_layout.h"

namespace tessera::internal {

/// The layout of a state that only some parameters have, for one slice of a flat buffer. Pure
/// arithmetic.
///
/// Note [Partial states]
/// A state that all parameters have is as long as the slice. Otherwise the state leaves out the
/// segments of parameters that lack it, each with the padding after it, and the remaining segments
/// become contiguous. Segments begin on multiples of the alignment (Note [Padding]), in the slice
/// and in the state. If the slice is all padding, nothing is left out.
class PartialStateLayout {
 public:
  /// `segments`: the segments of the slice, in buffer order; their `buffer_offset` counts from the
  /// start of the slice. `numel`: the number of elements of the slice. `has` is called with a
  /// Segment::parameter, and returns true if that parameter has the state.
  PartialStateLayout(const std::vector<Segment>& segments, int64_t numel,
                     const std::function<bool(size_t parameter)>& has);

  /// Returns the number of elements of the state.
  int64_t numel() const { return numel_; }
  /// Returns the position in the state of the slice's element `at`; -1 if it is left out.
  int64_t find(int64_t at) const;

 private:
  struct Run {
    Range range;     // in the slice
    int64_t offset;  // where the range begins in the state
  };
  std::vector<Run> runs_;  // ascending
  int64_t numel_ = 0;
};

}  // namespace tessera::internal
