#pragma once

#include <cstddef>
#include <limits>
#include <vector>

namespace tessera::internal {

/// How a step clips the mean gradient of one optimizer's parameter groups, according to Options. A
/// plain value, equal on all ranks.
struct Clipping {
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  double norm_type = 2.0;     ///< p of the norm, > 0; infinity: the maximum norm
  double max_value = kNever;  ///< magnitude to which elements of the unscaled gradient are clipped
  std::vector<double> max_norms = {kNever};  ///< one for all parameters, or one for each group
  std::vector<size_t> group_of = {};  ///< group per table entry; empty if there is one max norm

  /// Returns the index in `max_norms` that applies to parameter `parameter` of the table.
  size_t group(size_t parameter) const { return group_of.empty() ? 0 : group_of[parameter]; }
};

}  // namespace tessera::internal
