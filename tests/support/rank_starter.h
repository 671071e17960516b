#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal::testing {

/// A process of this test binary from which rank processes are forked. Loading LibTorch takes half
/// a second of a core, and much longer under a sanitizer, so it is loaded once. The process does
/// nothing else, has one thread, and does not use LibTorch before it forks. It starts with
/// OMP_NUM_THREADS=1 and ends with its parent.
///
/// A forked rank differs from an executed one in what is read at load time (variables of OpenMP,
/// the allocator, the linker): those values are the starter's. So are /proc/PID/environ and the
/// addresses of libraries, which all ranks share.
class RankStarter {
 public:
  /// The starter of this process. The first call starts it.
  static RankStarter& instance();

  struct Rank {
    pid_t pid = -1;
    FileDescriptor status;  ///< after the rank's end, waitpid()'s status can be read from it
  };
  /// Starts a rank with these variables ("NAME=value") that runs the body called `body` and writes
  /// stdout and stderr to `output`. Local; any thread. Throws std::runtime_error.
  Rank start(const std::string& body, const std::vector<std::string>& variables, int output);

 private:
  RankStarter();

  FileDescriptor socket_;
};

/// For main(): if the arguments make this process a starter, serves its parent until that ends and
/// returns the exit code; in a rank forked meanwhile returns the result of `run_body(body)`.
/// Otherwise returns -1.
int serve_as_rank_starter_if_asked(int argc, char** argv,
                                   const std::function<int(const std::string& body)>& run_body);

}  // namespace tessera::internal::testing
