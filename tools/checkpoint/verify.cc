#include <cstdint>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tessera/checkpoint/directory/step_list.h"
#include "tessera/checkpoint/format/step_names.h"
#include "tessera/tools/checkpoint/commands.h"
#include "tessera/tools/checkpoint/progress_bar.h"
#include "tessera/tools/checkpoint/step_files.h"

namespace tessera::internal {

namespace {

absl::Status verify_step(FileSystem& files, const std::string& path) {
  const auto reader = StepReader::open(files, path);
  if (!reader.ok()) return reader.status();
  if (const std::string strays = (*reader)->strays_text(); !strays.empty()) {
    std::fprintf(stderr, "%s: also has %s, which its manifest does not name\n", path.c_str(),
                 strays.c_str());
  }
  int64_t bytes = 0;
  for (const ManifestFile& file : (*reader)->manifest().files) bytes += file.bytes;
  ProgressBar progress(path, bytes);
  return (*reader)->verify_all([&](int64_t block) { progress.add(block); });
}

}  // namespace

absl::StatusOr<bool> verify_steps(FileSystem& files, const std::string& path, std::FILE* out) {
  std::vector<std::string> paths;
  const auto steps = list_steps(files, path);
  if (!steps.ok()) return steps.status();
  for (const int64_t step : *steps) paths.push_back(join_path(path, step_name(step)));
  if (paths.empty()) {
    const auto is_step = exists(files, join_path(path, kManifestName));
    if (!is_step.ok()) return is_step.status();
    if (!*is_step) return no_step_at(path);
    paths.push_back(path);
  }
  bool is_whole = true;
  for (const std::string& step : paths) {
    const absl::Status status = verify_step(files, step);
    if (status.ok()) {
      std::fprintf(out, "%s: whole\n", step.c_str());
    } else if (absl::IsDataLoss(status)) {
      is_whole = false;
      std::fprintf(out, "%s: DAMAGED: %s\n", step.c_str(), std::string(status.message()).c_str());
    } else {
      return status;
    }
  }
  return is_whole;
}

}  // namespace tessera::internal
