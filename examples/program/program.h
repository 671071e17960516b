#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include "tessera/environment.h"
#include "tessera/examples/program/command_line.h"

namespace program {

/// Thrown for bad values of flags, one problem per line. run() then returns kUsageError.
struct UsageError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// main() of an example: reads the command line, checks the launcher's variables, calls `body`, and
/// returns the exit code: 0; 1 after an exception, whose text goes to stderr, or if standard output
/// was not written completely (a full disk, a closed pipe); kUsageError after a bad command line or
/// bad variables.
int run(const About& about, int argc, char** argv, const std::function<void()>& body);

/// Returns this process's rank, and the place where the ranks meet, from the launcher's variables.
/// The place may be missing if mpirun or srun started ranks on several hosts: they meet by MPI on
/// CPUs, and with GPUs init_process_group() reports what is missing. Throws UsageError if the
/// variables are wrong. Local.
tessera::Environment read_job();

/// Throws UsageError unless a file can be created at `path`, the value of `flag`. Call it before
/// the work whose results go there. Does not change an existing file.
void require_writable(const std::string& flag, const std::string& path);

}  // namespace program
