#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::internal {

/// System counters and limits that may explain a SIGKILL that the launcher did not send.
class KillReasons {
 public:
  /// Reads the present counts. `root` is prepended to all paths; tests put a made-up tree there.
  explicit KillReasons(std::string root = "");

  /// Returns a possible reason why a process died of `signal`, with the remedy: the kernel has
  /// killed processes for lack of memory since construction, CPU time is limited, or /dev/shm is
  /// full. Returns "" if there is no such reason.
  std::string hint(int signal) const;

 private:
  /// A file that counts the processes killed for lack of memory, and its count at construction.
  struct Count {
    std::string path;
    bool is_of_group;
    int64_t before;
  };

  const std::string root_;
  std::vector<Count> counts_;
};

}  // namespace tessera::internal
