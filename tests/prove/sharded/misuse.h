#pragma once

#include <cstdint>
#include <string_view>

namespace prove {

/// What rank 1 does wrong in the third step, for all ranks to notice.
enum class Misuse : uint8_t {
  kNone,
  kDie,        ///< it kills itself, so that no code of its own can tell anybody
  kOtherCall,  ///< it calls another collective than the others
  kNan,        ///< its gradient is not a number
};

/// "none", "die", "other_call" or "nan"; throws c10::Error.
Misuse parse_misuse(std::string_view text);

/// Whether rank `rank` misbehaves in step `step`.
inline bool is_moment(int rank, int64_t step) { return rank == 1 && step == 2; }

}  // namespace prove
