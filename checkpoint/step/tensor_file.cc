#include "tessera/checkpoint/step/tensor_file.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/checkpoint/format/block_checksums.h"
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

/// Resolves symbolic links, because model hubs keep files under other names and link to them.
std::string resolved(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  return error ? path : real.string();
}

/// Reads an index, which maps the name of each tensor to the name of its file.
absl::StatusOr<std::map<std::string, std::string>> read_index(FileSystem& files,
                                                              const std::string& path) {
  const std::string real = resolved(path);
  const auto entry = files.entry(real);
  if (!entry.ok()) return entry.status();
  const auto file = files.open(real);
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
  std::map<std::string, std::string> file_of;
  for (const auto& [tensor, name] : map->items()) {
    const std::string file = name.is_string() ? name.get<std::string>() : "";
    if (file.empty() || file.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("got ", describe(name), " for '",
                                                     printable(tensor),
                                                     "', expected the name of a file beside it"));
    }
    file_of[tensor] = file;
  }
  return file_of;
}

/// Returns "'a' is in x and in y" for a tensor that is in two files; "" if there is none.
std::string duplicate_in(const std::vector<TensorFile>& files) {
  std::map<std::string_view, const TensorFile*> seen;
  for (const TensorFile& file : files) {
    for (const SafetensorsTensor& tensor : file.header().tensors) {
      const auto [first, is_new] = seen.try_emplace(tensor.name, &file);
      if (is_new) continue;
      return absl::StrCat("got the tensor '", printable(tensor.name), "' in '",
                          first->second->path(), "' and in '", file.path(),
                          "', expected it in one");
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<TensorFile> TensorFile::open(FileSystem& files, const std::string& path) {
  TensorFile opened;
  opened.path_ = path;
  const std::string real = resolved(path);
  const auto entry = files.entry(real);
  if (!entry.ok()) return entry.status();
  auto file = files.open(real);
  if (!file.ok()) return file.status();
  opened.file_ = *std::move(file);
  absl::Status status = opened.read_header(entry->bytes);
  if (!status.ok()) return problem_in(path, status);
  return opened;
}

absl::StatusOr<std::vector<TensorFile>> TensorFile::open_all(FileSystem& files,
                                                             const std::string& path) {
  std::vector<TensorFile> opened;
  if (!path.ends_with(".json")) {
    auto file = open(files, path);
    if (!file.ok()) return file.status();
    opened.push_back(*std::move(file));
    return opened;
  }
  const auto file_of = read_index(files, path);
  if (!file_of.ok()) return problem_in(path, file_of.status());
  std::map<std::string, size_t> place_of;  // by file name: index in `opened`
  std::vector<std::set<std::string_view>> names_in;
  for (const auto& [tensor, name] : *file_of) {
    const auto [place, is_new] = place_of.try_emplace(name, opened.size());
    if (is_new) {
      auto file = open(files, join_path(parent_path(path), name));
      if (!file.ok()) return file.status();
      std::set<std::string_view>& names = names_in.emplace_back();
      for (const SafetensorsTensor& one : file->header().tensors) names.insert(one.name);
      opened.push_back(*std::move(file));
    }
    if (!names_in[place->second].contains(tensor)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", path, "': got '", printable(tensor), "' in '", printable(name),
                       "', expected a file that has it; get index and files from one place"));
    }
  }
  if (const std::string twice = duplicate_in(opened); !twice.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "': ", twice));
  }
  return opened;
}

absl::StatusOr<std::string> TensorFile::fingerprint() const {
  constexpr int64_t kSampleBytes = 64 << 10;
  const int64_t bytes = data_begin_ + header_.data_bytes();
  const int64_t rest_bytes = std::max<int64_t>(bytes - kSampleBytes, 0);
  std::string sample;
  for (const int64_t begin : {int64_t{0}, rest_bytes / 2, rest_bytes}) {
    const auto part = bytes_at(*file_, begin, std::min(kSampleBytes, bytes - begin));
    if (!part.ok()) return problem_in(path_, part.status());
    sample += *part;
  }
  return absl::StrCat(bytes, " bytes, sample ", absl::Hex(checksum_of(sample)));
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
