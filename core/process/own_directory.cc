#include "tessera/core/process/own_directory.h"

#include <sys/stat.h>
#include <unistd.h>

namespace tessera::internal {

bool is_own_directory(const std::string& path) {
  constexpr mode_t kForOthers = 0077;
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::geteuid() && (status.st_mode & kForOthers) == 0;
}

}  // namespace tessera::internal
