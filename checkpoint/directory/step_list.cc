#include "tessera/checkpoint/directory/step_list.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/checkpoint/format/step_names.h"

namespace tessera::internal {
namespace {

absl::StatusOr<std::unique_ptr<StepReader>> open_verified(FileSystem& files,
                                                          const std::string& path,
                                                          Verification verification) {
  auto reader = StepReader::open(files, path);
  if (!reader.ok() || verification == Verification::kStructure) return reader;
  if (absl::Status status = (*reader)->verify_all(); !status.ok()) return status;
  return reader;
}

}  // namespace

bool is_damage(const absl::Status& status) {
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

absl::StatusOr<NewestStep> newest_step(FileSystem& files, const std::string& directory,
                                       Verification verification) {
  auto steps = list_steps(files, directory);
  if (!steps.ok()) return steps.status();
  NewestStep newest;
  std::vector<std::string> reasons;
  for (; !steps->empty(); steps->pop_back()) {
    const std::string name = step_name(steps->back());
    auto reader = open_verified(files, join_path(directory, name), verification);
    if (reader.ok()) {
      newest.reader = *std::move(reader);
      break;
    }
    if (!is_damage(reader.status())) return reader.status();
    reasons.push_back(
        absl::StrCat("[checkpoint] ", name, " is not used: ", reader.status().message()));
  }
  if (newest.reader == nullptr && !reasons.empty()) {
    return absl::DataLossError(absl::StrCat("[checkpoint] '", directory, "': no step verifies:\n",
                                            absl::StrJoin(reasons, "\n")));
  }
  for (std::string& reason : reasons) {
    newest.rejected.push_back(absl::StrCat(reason, "; falling back to ", step_name(steps->back())));
  }
  return newest;
}

}  // namespace tessera::internal
