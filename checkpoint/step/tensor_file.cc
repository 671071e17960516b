#include "tessera/checkpoint/step/tensor_file.h"

#include <algorithm>
#include <set>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/checkpoint/format/json.h"

namespace tessera::internal {

namespace {

absl::Status problem_in(const std::string& path, const absl::Status& status) {
  return {status.code(), absl::StrCat("'", path, "': ", status.message())};
}

absl::StatusOr<std::string> bytes_at(ReadableFile& file, int64_t offset, int64_t bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  if (absl::Status status = file.read(offset, absl::MakeSpan(text)); !status.ok()) return status;
  return text;
}

/// The files that an index names, in the index's directory.
absl::StatusOr<std::vector<std::string>> files_of_index(FileSystem& files,
                                                        const std::string& path) {
  const auto entry = files.entry(path);
  if (!entry.ok()) return entry.status();
  const auto file = files.open(path);
  if (!file.ok()) return file.status();
  constexpr int64_t kMaxBytes = 64 << 20;
  if (entry->bytes > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("got an index of ", entry->bytes, " bytes, expected at most ", kMaxBytes));
  }
  const auto text = bytes_at(**file, 0, entry->bytes);
  if (!text.ok()) return text.status();
  const auto json = parse_json(*text);
  if (!json.ok()) return json.status();
  const auto map = json->is_object() ? json->find("weight_map") : json->end();
  if (!json->is_object() || map == json->end() || !map->is_object()) {
    return absl::InvalidArgumentError("got no object 'weight_map', expected an index of files");
  }
  std::set<std::string> names;
  for (const auto& [tensor, name] : map->items()) {
    if (!name.is_string() || name.get<std::string>().find('/') != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("got ", describe(name), " for '",
                                                     printable(tensor),
                                                     "', expected the name of a file beside it"));
    }
    names.insert(name.get<std::string>());
  }
  std::vector<std::string> paths;
  paths.reserve(names.size());
  for (const std::string& name : names) paths.push_back(join_path(parent_path(path), name));
  return paths;
}

}  // namespace

absl::StatusOr<TensorFile> TensorFile::open(FileSystem& files, const std::string& path) {
  TensorFile opened;
  opened.path_ = path;
  const auto entry = files.entry(path);
  if (!entry.ok()) return entry.status();
  auto file = files.open(path);
  if (!file.ok()) return file.status();
  opened.file_ = *std::move(file);
  absl::Status status = opened.read_header(entry->bytes);
  if (!status.ok()) return problem_in(path, status);
  return opened;
}

absl::StatusOr<std::vector<TensorFile>> TensorFile::open_all(FileSystem& files,
                                                             const std::string& path) {
  std::vector<std::string> paths = {path};
  if (path.ends_with(".json")) {
    auto indexed = files_of_index(files, path);
    if (!indexed.ok()) return problem_in(path, indexed.status());
    paths = *std::move(indexed);
  }
  std::vector<TensorFile> opened;
  for (const std::string& one : paths) {
    auto file = open(files, one);
    if (!file.ok()) return file.status();
    opened.push_back(*std::move(file));
  }
  return opened;
}

absl::Status TensorFile::read_header(int64_t file_bytes) {
  const auto begin =
      bytes_at(*file_, 0, std::min<int64_t>(file_bytes, SafetensorsHeader::kLengthBytes));
  if (!begin.ok()) return begin.status();
  const auto length = SafetensorsHeader::json_bytes(*begin, file_bytes);
  if (!length.ok()) return length.status();
  data_begin_ = SafetensorsHeader::kLengthBytes + *length;
  const auto json = bytes_at(*file_, SafetensorsHeader::kLengthBytes, *length);
  if (!json.ok()) return json.status();
  auto header = SafetensorsHeader::from_json(*json, file_bytes - data_begin_);
  if (!header.ok()) return header.status();
  header_ = *std::move(header);
  return absl::OkStatus();
}

absl::Status TensorFile::read(const SafetensorsTensor& tensor, int64_t offset,
                              absl::Span<char> to) const {
  const absl::Status status = file_->read(data_begin_ + tensor.begin + offset, to);
  return status.ok() ? status : problem_in(path_, status);
}

}  // namespace tessera::internal
