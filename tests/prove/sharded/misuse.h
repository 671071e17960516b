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
  kListen,     ///< it opens a port and keeps it
};

/// "none", "die", "other_call", "nan" or "listen"; throws c10::Error.
Misuse parse_misuse(std::string_view text);

/// Opens a TCP port of the kernel's choice, for this host only and until the process ends. Throws
/// c10::Error if there is none.
void open_port();

/// Whether rank `rank` misbehaves in step `step`.
inline bool is_moment(int rank, int64_t step) { return rank == 1 && step == 2; }

}  // namespace prove
