#include "tessera/checkpoint/files/best_effort.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include <absl/strings/str_cat.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/core/process/unsupported_call.h"

namespace tessera::internal {
namespace {

void say_once(std::atomic_flag& is_said, const std::string& text) {
  if (!is_said.test_and_set()) std::fprintf(stderr, "%s\n", text.c_str());
}

absl::Status fsync_or_say(int fd, const std::string& path, std::atomic_flag& is_said,
                          const char* meaning) {
  int result = 0;
  do {
    result = ::fsync(fd);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return absl::OkStatus();
  const int error = errno;
  absl::Status status = file_error(error, "fsync", path);
  if (!is_unsupported(error)) return status;
  say_once(is_said, absl::StrCat(status.message(), "; this file system has no fsync ", meaning));
  return absl::OkStatus();
}

}  // namespace

absl::Status fsync_file(int fd, const std::string& path) {
  static std::atomic_flag is_said;
  return fsync_or_say(fd, path, is_said,
                      "of files: a power failure may damage the newest checkpoints there");
}

absl::Status fsync_directory(int fd, const std::string& path) {
  static std::atomic_flag is_said;
  return fsync_or_say(
      fd, path, is_said,
      "of directories: names of new checkpoints there may not survive a power failure");
}

void set_mode(int fd, const std::string& path, mode_t mode) {
  constexpr mode_t kPermissions = 0777;
  struct stat status {};
  const auto has_it = [&] {
    const int result = fd >= 0 ? ::fstat(fd, &status) : ::lstat(path.c_str(), &status);
    return result == 0 && (status.st_mode & kPermissions) == mode;
  };
  if (has_it()) return;
  (void)(fd >= 0 ? ::fchmod(fd, mode) : ::chmod(path.c_str(), mode));
  // Looks at the mode again, because some file systems refuse to change it, and some only claim to
  // have changed it. Missing permissions do no harm here; only surplus ones are reported.
  if (has_it() || (status.st_mode & kPermissions & ~mode) == 0) return;
  static std::atomic_flag is_said;
  say_once(is_said, absl::StrCat("[checkpoint] '", path,
                                 "': other users may read it, and the checkpoints there, because "
                                 "this file system refuses modes; mount it with stricter ones, or "
                                 "save elsewhere"));
}

}  // namespace tessera::internal
