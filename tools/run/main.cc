#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "tessera/core/launch/worker_environment.h"
#include "tessera/core/process/available_cores.h"
#include "tessera/tools/run/command_line.h"
#include "tessera/tools/run/launcher.h"
#include "tessera/tools/run/status_command.h"

namespace {

/// A pipe must not land on a standard descriptor that the caller has closed.
bool open_standard_descriptors() {
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  return fd >= 0 && close(fd) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (!open_standard_descriptors()) {
    fprintf(stderr, "tessera-run: cannot open /dev/null: %s\n", strerror(errno));
    return tessera::internal::kSystemExit;
  }
  const int core_count = tessera::internal::available_cores();
  tessera::internal::Job job;
  for (char** entry = environ; *entry != nullptr; ++entry) job.inherited.emplace_back(*entry);
  auto command =
      tessera::internal::parse_command_line({argv + 1, argv + argc}, core_count, job.inherited);
  if (!command.ok()) {
    const std::string problems =
        absl::StrReplaceAll(command.status().message(), {{"\n", "\ntessera-run: "}});
    fprintf(stderr, "tessera-run: %s\nSee tessera-run --help\n", problems.c_str());
    return tessera::internal::kUsageExit;
  }
  if (command->help || command->version) {
    const std::string text = command->help ? tessera::internal::help_text()
                                           : "tessera-run, of Tessera " TESSERA_VERSION "\n";
    if (fputs(text.c_str(), stdout) >= 0 && fflush(stdout) == 0) return 0;
    fprintf(stderr, "tessera-run: cannot write to stdout: %s\n", strerror(errno));
    return tessera::internal::kSystemExit;
  }
  if (command->status) {
    return tessera::internal::print_status(command->status_job, command->json);
  }
  if (const std::string problem = tessera::internal::outer_job_problem(job.inherited);
      !problem.empty() && !command->supervise) {
    fprintf(stderr, "tessera-run: %s\n", problem.c_str());
    return tessera::internal::kUsageExit;
  }
  job.line = *std::move(command);
  job.core_count = core_count;
  job.cores = tessera::internal::cores_of();
  return tessera::internal::Launcher(std::move(job)).run();
}
