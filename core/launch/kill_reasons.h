#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::internal {

/// What the system counts and limits that may explain a SIGKILL which the launcher has not sent.
class KillReasons {
 public:
  /// Notes what is counted so far. `root` precedes all paths; tests have a made-up tree there.
  explicit KillReasons(std::string root = "");

  /// What suggests why a process has died of `signal` since then, with the remedy, as in "the
  /// kernel has killed ..."; "" if nothing does.
  std::string hint(int signal) const;

 private:
  /// A file that counts the processes killed for lack of memory, and what it has counted before.
  struct Count {
    std::string path;
    bool is_of_group;
    int64_t before;
  };

  const std::string root_;
  std::vector<Count> counts_;
};

}  // namespace tessera::internal
