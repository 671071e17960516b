#include "tessera/core/launch/store_directory.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

namespace tessera::internal {

absl::StatusOr<std::string> create_store_directory() {
  const char* place = getenv("TMPDIR");
  if (place == nullptr || *place == '\0') place = "/tmp";
  char parent[PATH_MAX];
  std::string path;
  if (realpath(place, parent) != nullptr) {
    path = absl::StrCat(parent, "/tessera-run-XXXXXX");
    if (mkdtemp(path.data()) != nullptr) {
      struct stat status;
      const bool has_mode = stat(path.c_str(), &status) == 0 && (status.st_mode & 0777) == 0700;
      // If the umask has removed permissions of this user, set the mode.
      if (has_mode || chmod(path.c_str(), 0700) == 0) return path;
      const int error = errno;
      rmdir(path.c_str());
      errno = error;
    }
  }
  return absl::UnavailableError(absl::StrCat("cannot make a directory under ", place, ": ",
                                             strerror(errno),
                                             "; set TMPDIR to a place that can be "
                                             "written to"));
}

void remove_store_directory(const std::string& directory) {
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
}

}  // namespace tessera::internal
