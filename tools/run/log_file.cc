#include "tessera/tools/run/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::internal {
namespace {

absl::Status unavailable(const std::string& path, const std::string& reason) {
  return absl::UnavailableError(absl::StrCat("--log-dir: cannot make '", path, "': ", reason));
}

}  // namespace

absl::Status make_log_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? unavailable(path, error.message()) : absl::OkStatus();
}

absl::StatusOr<LogFile> LogFile::open(const std::string& path) {
  LogFile log;
  log.path_ = path;
  log.file_ = FileDescriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!log.file_.is_open()) return unavailable(path, strerror(errno));
  return log;
}

void LogFile::append(std::string_view bytes) {
  while (file_.is_open() && !bytes.empty()) {
    const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count > 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      problem_ =
          absl::StrCat("cannot write to '", path_, "': ", strerror(count == 0 ? ENOSPC : errno),
                       "; what comes after this is not kept there");
      file_.close();
    }
  }
}

std::string LogFile::take_problem() { return std::exchange(problem_, ""); }

}  // namespace tessera::internal
