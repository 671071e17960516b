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
/// A state that all parameters have is as long as the slice. Otherwise the slice's segments of
/// parameters without it are left out, each with the padding after it, and the rest becomes
/// contiguous. Segments begin on multiples of the alignment (Note [Padding]), and so do those of
/// the rest. A slice that is padding only leaves nothing out.
class PartialStateLayout {
 public:
  /// `segments` are the slice's in buffer order, `buffer_offset` counted from the start of the
  /// slice, which has `numel` elements. has(parameter): whether Segment::parameter has the state.
  PartialStateLayout(const std::vector<Segment>& segments, int64_t numel,
                     const std::function<bool(size_t parameter)>& has);

  /// Returns the number of elements of the state.
  int64_t numel() const { return numel_; }
  /// Returns the place of the slice's element `at` in the state; -1 if it is left out.
  int64_t find(int64_t at) const;

 private:
  struct Run {
    Range range;     // of the slice
    int64_t offset;  // in the state
  };
  std::vector<Run> runs_;  // ascending
  int64_t numel_ = 0;
};

}  // namespace tessera::internal
