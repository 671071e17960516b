#pragma once

#include <cstdint>
#include <string_view>

namespace prove {

/// A mistake of rank 1 in the third step that all ranks must notice.
enum class Misuse : uint8_t {
  kNone,
  kDie,        ///< it kills itself, so its own code cannot report anything
  kOtherCall,  ///< it calls another collective than the other ranks
  kNan,        ///< its gradient is not a number
  kListen,     ///< it opens a port and keeps it
};

/// "none", "die", "other_call", "nan" or "listen"; throws c10::Error.
Misuse parse_misuse(std::string_view text);

/// Opens a TCP port chosen by the kernel, only for this host and until the process ends. Throws
/// c10::Error if there is none.
void open_port();

/// Returns true if rank `rank` misbehaves in step `step`.
inline bool is_moment(int rank, int64_t step) { return rank == 1 && step == 2; }

}  // namespace prove
