#include "tessera/core/process/control_groups.h"

#include <fstream>

#include <absl/algorithm/container.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

namespace tessera::internal {

std::vector<std::string> control_group_folders(const std::string& controller,
                                               const std::string& root) {
  const std::string top = root + "/sys/fs/cgroup";
  const std::string old_top = absl::StrCat(top, "/", controller);
  std::vector<std::string> folders = {top, old_top};
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3 || !absl::StartsWith(fields[2], "/")) continue;
    // Skips a group outside this process's cgroup namespace.
    if (absl::StrContains(fields[2], "/..")) continue;
    const bool is_version_2 = fields[0] == "0" && fields[1].empty();
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    if (!is_version_2 && !absl::c_linear_search(controllers, controller)) continue;
    std::string group = fields[2];
    for (; group.size() > 1; group.resize(group.rfind('/'))) {
      folders.push_back((is_version_2 ? top : old_top) + group);
    }
  }
  return folders;
}

}  // namespace tessera::internal
