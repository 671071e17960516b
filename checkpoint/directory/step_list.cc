#include "tessera/checkpoint/directory/step_list.h"

#include <algorithm>

#include "tessera/checkpoint/format/step_names.h"
#include "tessera/checkpoint/step/step_commit.h"

namespace tessera::internal {

absl::StatusOr<std::vector<int64_t>> list_steps(ReadableFileSystem& files,
                                                const std::string& directory) {
  const auto names = files.list(directory);
  if (!names.ok()) return names.status();
  std::vector<int64_t> steps;
  for (const std::string& name : *names) {
    const auto step = step_of(name);
    if (!step.has_value()) continue;
    const auto is_whole = is_step(files, join_path(directory, name));
    if (!is_whole.ok()) return is_whole.status();
    if (*is_whole) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

}  // namespace tessera::internal
