#include "tessera/tools/checkpoint/step_files.h"

#include <algorithm>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tessera/checkpoint/directory/step_list.h"
#include "tessera/checkpoint/format/step_names.h"

namespace tessera::internal {

absl::Status no_step_at(const std::string& path) {
  return absl::NotFoundError(absl::StrCat("'", path, "': got no step and no run with steps, ",
                                          "expected 'step-<N>' or the directory of a run"));
}

absl::StatusOr<std::unique_ptr<StepReader>> open_step(FileSystem& files, const std::string& path) {
  const auto is_step = exists(files, join_path(path, kManifestName));
  if (!is_step.ok()) return is_step.status();
  if (*is_step) return StepReader::open(files, path);
  const auto steps = list_steps(files, path);
  if (!steps.ok()) return steps.status();
  if (steps->empty()) return no_step_at(path);
  return StepReader::open(files, join_path(path, step_name(steps->back())));
}

absl::Status for_each_chunk(
    StepReader& reader, const std::string& name,
    const std::function<absl::Status(int64_t first, absl::Span<char> bytes)>& use) {
  const EntryForm& form = reader.manifest().entries.at(name).form;
  const int64_t width = form.element_bytes();
  const int64_t numel = form.numel();
  std::vector<char> chunk;
  for (int64_t first = 0; first < numel; first += kChunkBytes / width) {
    chunk.resize(static_cast<size_t>(std::min(kChunkBytes / width, numel - first) * width));
    absl::Status status = reader.read(name, first, absl::MakeSpan(chunk));
    if (status.ok()) status = use(first, absl::MakeSpan(chunk));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace tessera::internal
