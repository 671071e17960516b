#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include "tessera/environment.h"
#include "tessera/examples/program/command_line.h"

namespace program {

/// Values of flags that do not fit: one problem a line. run() ends with kUsageError.
struct UsageError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// What main() of an example does: reads the command line, checks the launcher's variables, calls
/// `body`, and returns the exit code: 0; 1 after an exception, whose text goes to stderr, and where
/// standard output did not take all that was printed (a full disk, a closed pipe); kUsageError,
/// also for bad variables.
int run(const About& about, int argc, char** argv, const std::function<void()>& body);

/// Who the launcher's variables say that this process is, and where its ranks meet, which those
/// that mpirun or srun has started on several hosts need not know: they meet by MPI, and GPUs'
/// ranks are told later. Throws UsageError where variables are wrong. Local.
tessera::Environment read_job();

/// Throws UsageError unless a file can be made at `path`, for which `flag` asks: before the work
/// whose results go there. Leaves what is there as it is.
void require_writable(const std::string& flag, const std::string& path);

}  // namespace program
