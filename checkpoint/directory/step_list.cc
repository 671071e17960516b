#include "tessera/checkpoint/directory/step_list.h"

#include <algorithm>
#include <cerrno>

#include "tessera/checkpoint/format/step_names.h"
#include "tessera/checkpoint/step/step_commit.h"

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
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kFailedPrecondition:
      return true;
    default:
      return false;
  }
}

absl::StatusOr<std::vector<int64_t>> list_steps(ReadableFileSystem& files,
                                                const std::string& directory) {
  const auto names = files.list(directory);
  if (!names.ok()) return names.status();
  std::vector<int64_t> steps;
  for (const std::string& name : *names) {
    const auto step = step_of(name);
    if (!step.has_value()) continue;
    const auto is_there = exists(files, sign_of_commit(files, join_path(directory, name)));
    if (!is_there.ok()) return is_there.status();
    if (*is_there) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

}  // namespace tessera::internal
