#include "tessera/checkpoint/directory/step_list.h"

#include <algorithm>
#include <cerrno>

#include "tessera/checkpoint/format/step_names.h"

namespace tessera::internal {

bool is_damage(const absl::Status& status) {
  switch (errno_of(status)) {
    case 0:
      break;
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
      return true;
    default:
      return false;
  }
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kResourceExhausted:
      return false;
    default:
      return true;
  }
}

absl::StatusOr<std::vector<int64_t>> list_steps(FileSystem& files, const std::string& directory) {
  const auto names = files.list(directory);
  if (!names.ok()) return names.status();
  std::vector<int64_t> steps;
  for (const std::string& name : *names) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

}  // namespace tessera::internal
