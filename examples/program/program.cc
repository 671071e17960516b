#include "tessera/examples/program/program.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include <absl/strings/str_cat.h>

#include "tessera/record_errors.h"

namespace program {
namespace {

/// Returns whether standard output was written completely; reports on stderr if not.
bool is_printed(const About& about) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return true;
  std::fprintf(stderr, "%s: standard output was not written whole%s%s\n", about.name.c_str(),
               errno != 0 ? ": " : "", errno != 0 ? std::strerror(errno) : "");
  return false;
}

/// Opens /dev/null for standard descriptors that the caller has closed, so that no other file takes
/// their numbers; writing to them fails.
void occupy_standard_descriptors() {
  int file = 0;
  do {
    file = ::open("/dev/null", O_RDONLY);
  } while (file >= 0 && file <= STDERR_FILENO);
  if (file >= 0) ::close(file);
}

}  // namespace

int run(const About& about, int argc, char** argv, const std::function<void()>& body) {
  occupy_standard_descriptors();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::optional<int> end = read_command_line(about, argc, argv);
  const int code = end ? *end : tessera::record_errors([&body] {
    read_job();  // a wrong launch is a usage error, so its exit code is kUsageError
    body();
    return 0;
  });
  return is_printed(about) || code != 0 ? code : 1;
}

tessera::Environment read_job() {
  tessera::EnvironmentNeeds needs;
  const auto identity = tessera::read_environment(tessera::process_environment, {.store = false});
  needs.store = !identity.ok() || !identity->is_of_scheduler() || identity->is_one_host();
  const auto job = tessera::read_environment(tessera::process_environment, needs);
  if (!job.ok()) throw UsageError(std::string(job.status().message()));
  return *job;
}

void require_writable(const std::string& flag, const std::string& path) {
  std::error_code ignored;
  std::string reason;
  if (std::filesystem::is_directory(path, ignored)) {
    reason = "it is a directory";
  } else if (std::filesystem::exists(path, ignored) &&
             !std::filesystem::is_regular_file(path, ignored)) {
    if (::access(path.c_str(), W_OK) != 0) reason = std::strerror(errno);
  } else {
    // Tries it with a temporary file in the same folder. Some results (write_trace()) are written
    // to such a file and renamed, so the folder must be writable even if the file exists.
    std::string beside = absl::StrCat(path, ".XXXXXX");
    const int file = ::mkstemp(beside.data());
    if (file < 0) reason = std::strerror(errno);
    if (file >= 0) {
      ::close(file);
      ::unlink(beside.c_str());
    }
  }
  if (reason.empty()) return;
  throw UsageError(absl::StrCat("--", flag, ": got '", path, "', which cannot be written (", reason,
                                "); give another path"));
}

}  // namespace program
