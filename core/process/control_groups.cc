#include "tessera/core/process/control_groups.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include <absl/strings/escaping.h>
#include <absl/strings/match.h>
#include <absl/strings/str_split.h>

namespace tessera::internal {
namespace {

bool is_listed(const std::string& word, const std::string& list) {
  const std::vector<std::string> words = absl::StrSplit(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// This process's group in the one hierarchy of version 2, and in that of a controller of
/// version 1.
struct OwnGroups {
  std::optional<std::string> unified;
  std::optional<std::string> of_controller;
};

OwnGroups own_groups(const std::string& controller, const std::string& root) {
  OwnGroups own;
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (fields[0] == "0" && fields[1].empty()) own.unified = fields[2];
    if (is_listed(controller, fields[1])) own.of_controller = fields[2];
  }
  return own;
}

/// What of a hierarchy is mounted where: a line of mountinfo.
struct Mount {
  std::string group;  // that is at the mount's top
  std::string place;
  std::string type;
  std::string options;
};

/// A path without what mountinfo writes as \040; "" for "/".
std::string path_of(const std::string& field) {
  std::string path;
  if (!absl::CUnescape(field, &path)) path = field;
  return path == "/" ? "" : path;
}

std::optional<Mount> mount_of(const std::string& line) {
  const std::vector<std::string> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
  if (halves.size() != 2) return std::nullopt;
  const std::vector<std::string> where = absl::StrSplit(halves[0], ' ');
  const std::vector<std::string> what = absl::StrSplit(halves[1], ' ');
  if (where.size() < 5 || what.size() < 3) return std::nullopt;
  return Mount{path_of(where[3]), path_of(where[4]), what[0], what[2]};
}

/// The rest of `group` below `top`. A group outside of what is mounted, as in a container that
/// knows the host's paths only, is taken to be the top.
std::string path_below(const std::string& top, const std::string& group) {
  if (!absl::StartsWith(group, top) || absl::StrContains(group, "/..")) return "";
  const std::string rest = group.substr(top.size());
  return rest.size() > 1 && rest[0] == '/' ? rest : "";
}

/// Appends the folders of `group` and of its parents, up to the mount's top.
void append_levels(const std::string& root, const Mount& mount, const std::string& group,
                   std::vector<std::string>& folders) {
  const std::string top = root + mount.place;
  std::string folder = top + path_below(mount.group, group);
  for (; folder.size() > top.size(); folder.resize(folder.rfind('/'))) folders.push_back(folder);
  folders.push_back(top);
}

}  // namespace

std::vector<std::string> control_group_folders(const std::string& controller,
                                               const std::string& root) {
  const OwnGroups own = own_groups(controller, root);
  std::vector<std::string> folders;
  std::ifstream mounts(root + "/proc/self/mountinfo");
  std::string line;
  while (std::getline(mounts, line)) {
    const std::optional<Mount> mount = mount_of(line);
    if (!mount) continue;
    if (mount->type == "cgroup2" && own.unified) {
      append_levels(root, *mount, *own.unified, folders);
    } else if (mount->type == "cgroup" && is_listed(controller, mount->options) &&
               own.of_controller) {
      append_levels(root, *mount, *own.of_controller, folders);
    }
  }
  // A runtime may show a container's limits here by other means than a mount of their hierarchy.
  folders.push_back(root + "/sys/fs/cgroup");
  return folders;
}

}  // namespace tessera::internal
