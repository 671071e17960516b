#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal::testing {

/// A process of this test binary from which rank processes are forked: to load LibTorch takes half
/// a second of a core, and much longer under a sanitizer, so it is loaded once. The process does
/// nothing else, has one thread, and does not use LibTorch before it forks. It starts with
/// OMP_NUM_THREADS=1 and ends with its parent.
///
/// A forked rank is what an executed one is but for this: what is read when a program is loaded
/// (variables of OpenMP, of the allocator, of the linker) is the starter's; so are
/// /proc/PID/environ and the addresses of libraries, which all ranks have in common.
class RankStarter {
 public:
  /// Of this process, which is started by the first call.
  static RankStarter& instance();

  struct Rank {
    pid_t pid = -1;
    FileDescriptor status;  ///< waitpid()'s status can be read from it once the rank has ended
  };
  /// Local. Starts a rank with these variables ("NAME=value") that runs the body called `body` and
  /// writes stdout and stderr to `output`. Any thread. Throws std::runtime_error.
  Rank start(const std::string& body, const std::vector<std::string>& variables, int output);

 private:
  RankStarter();

  FileDescriptor socket_;
};

/// For main(): if the arguments say that this process is a starter, serves its parent until that
/// has ended, and returns its exit code; in a rank that is forked meanwhile returns that of
/// `run_body(body)`. Else -1.
int serve_as_rank_starter_if_asked(int argc, char** argv,
                                   const std::function<int(const std::string& body)>& run_body);

}  // namespace tessera::internal::testing
