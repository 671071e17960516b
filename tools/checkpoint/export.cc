#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tessera/checkpoint/format/safetensors.h"
#include "tessera/checkpoint/format/step_names.h"
#include "tessera/tools/checkpoint/commands.h"
#include "tessera/tools/checkpoint/progress_bar.h"
#include "tessera/tools/checkpoint/step_files.h"

namespace tessera::internal {

namespace {

constexpr std::string_view kModel = "model.";

/// The model's entries, those with the widest elements first.
std::vector<std::string> model_entries(const Manifest& manifest) {
  std::vector<std::string> names;
  for (const auto& [name, entry] : manifest.entries) {
    if (name.starts_with(kModel)) names.push_back(name);
  }
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return manifest.entries.at(a).form.element_bytes() >
           manifest.entries.at(b).form.element_bytes();
  });
  return names;
}

SafetensorsHeader header_of(const Manifest& manifest, const std::vector<std::string>& names) {
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}, {"tessera.step", absl::StrCat(manifest.step)}};
  for (const std::string& name : names) {
    const EntryForm& form = manifest.entries.at(name).form;
    const int64_t begin = header.data_bytes();
    header.tensors.push_back({.name = name.substr(kModel.size()),
                              .dtype = form.dtype,
                              .shape = form.sizes,
                              .begin = begin,
                              .end = begin + form.numel() * form.element_bytes()});
  }
  return header;
}

/// The elements of `memory`, which is laid out by form.strides, in row-major order.
std::string in_row_major(const EntryForm& form, const std::string& memory) {
  const auto width = static_cast<size_t>(form.element_bytes());
  std::string ordered;
  ordered.reserve(memory.size());
  std::vector<int64_t> index(form.sizes.size(), 0);
  for (size_t done = 0; done < memory.size(); done += width) {
    int64_t offset = 0;
    for (size_t d = 0; d < index.size(); ++d) offset += index[d] * form.strides[d];
    ordered.append(memory, static_cast<size_t>(offset) * width, width);
    for (size_t d = index.size(); d > 0 && ++index[d - 1] == form.sizes[d - 1]; --d) {
      index[d - 1] = 0;
    }
  }
  return ordered;
}

absl::Status write_values(StepReader& reader, const std::string& name, WritableFile& file,
                          ProgressBar& progress) {
  const EntryForm& form = reader.manifest().entries.at(name).form;
  std::string memory;  // the whole entry, if its order must be changed
  absl::Status status =
      for_each_chunk(reader, name, [&](int64_t /*first*/, absl::Span<char> bytes) -> absl::Status {
        progress.add(static_cast<int64_t>(bytes.size()));
        if (form.is_row_major()) return file.write_all({bytes.data(), bytes.size()});
        memory.append(bytes.data(), bytes.size());
        return absl::OkStatus();
      });
  if (!status.ok() || form.is_row_major()) return status;
  return file.write_all(in_row_major(form, memory));
}

absl::Status write_model(FileSystem& files, StepReader& reader, const std::string& path) {
  const std::vector<std::string> names = model_entries(reader.manifest());
  const SafetensorsHeader header = header_of(reader.manifest(), names);
  const auto bytes = header.to_bytes();
  if (!bytes.ok()) return bytes.status();
  const auto file = files.create(path);
  if (!file.ok()) return file.status();
  ProgressBar progress("exporting", header.data_bytes());
  absl::Status status = (*file)->write_all(*bytes);
  for (const std::string& name : names) {
    if (status.ok()) status = write_values(reader, name, **file, progress);
  }
  if (status.ok()) status = (*file)->sync();
  if (status.ok()) status = (*file)->close();
  return status;
}

}  // namespace

absl::Status export_model(FileSystem& files, const std::string& path, const std::string& to,
                          std::FILE* out) {
  const auto is_there = exists(files, to);
  if (!is_there.ok()) return is_there.status();
  if (*is_there) return absl::AlreadyExistsError(absl::StrCat("'", to, "': exists already"));
  const auto reader = open_step(files, path);
  if (!reader.ok()) return reader.status();
  const std::string temporary = absl::StrCat(to, ".tmp-", draw_nonce());
  absl::Status status = write_model(files, **reader, temporary);
  if (status.ok()) status = files.rename(temporary, to);
  if (status.ok()) status = files.sync_directory(parent_path(to));
  if (!status.ok()) {
    (void)files.remove_file(temporary);
    return status;
  }
  std::fprintf(out, "%s: the model of %s\n", to.c_str(), (*reader)->path().c_str());
  return status;
}

}  // namespace tessera::internal
