#include "tessera/checkpoint/step/step_reader.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/checkpoint/format/block_checksums.h"
#include "tessera/checkpoint/format/safetensors.h"
#include "tessera/checkpoint/format/step_names.h"
#include "tessera/checkpoint/step/shard_layout.h"

namespace tessera::internal {
namespace {

constexpr size_t kMaxOpenFiles = 16;  // the most files open at a time; each has a block in memory

const char* kind_name(FileEntry::Kind kind) {
  switch (kind) {
    case FileEntry::Kind::kFile:
      return "a file";
    case FileEntry::Kind::kDirectory:
      return "a directory";
    case FileEntry::Kind::kLink:
      return "a symbolic link";
    default:
      return "something else";
  }
}

/// Returns the last name in a path.
std::string last_name_in(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

StepReader::StepReader(ReadableFileSystem& files, std::string path, std::unique_ptr<FileLock> lock)
    : files_(files), path_(std::move(path)), lock_(std::move(lock)) {}

absl::StatusOr<std::unique_ptr<StepReader>> StepReader::open(ReadableFileSystem& files,
                                                             const std::string& path) {
  auto lock = files.lock_content(join_path(path, kManifestName), /*alone=*/false);
  if (is_held(lock.status())) return lock.status();
  std::unique_ptr<FileLock> held;
  if (lock.ok()) held = *std::move(lock);
  std::unique_ptr<StepReader> reader(new StepReader(files, path, std::move(held)));
  absl::Status status = reader->read_manifest();
  if (status.ok()) status = reader->check_names();
  for (int64_t rank = 0; status.ok() && rank < reader->manifest_.world; ++rank) {
    status = reader->check_header(rank);
  }
  if (!status.ok()) return status;
  return reader;
}

absl::Status StepReader::read_manifest() {
  const std::string path = join_path(path_, kManifestName);
  const auto entry = files_.entry(path);
  if (!entry.ok()) return entry.status();
  if (entry->kind != FileEntry::Kind::kFile || entry->bytes > Manifest::kMaxBytes) {
    return damage(path,
                  absl::StrCat("got ", kind_name(entry->kind), " of ", entry->bytes,
                               " bytes, expected a manifest of at most ", Manifest::kMaxBytes));
  }
  const auto file = files_.open(path);
  if (!file.ok()) return file.status();
  std::string text(static_cast<size_t>(entry->bytes), '\0');
  if (absl::Status status = (*file)->read(0, absl::MakeSpan(text)); !status.ok()) return status;
  auto manifest = Manifest::from_text(text);
  if (absl::IsUnimplemented(manifest.status())) {
    return absl::UnimplementedError(
        absl::StrCat("[checkpoint] '", path, "': ", manifest.status().message()));
  }
  if (!manifest.ok()) return damage(path, manifest.status().message());
  manifest_ = *std::move(manifest);
  if (step_name(manifest_.step) != last_name_in(path_)) {
    return damage(path, absl::StrCat("got the manifest of step ", manifest_.step, " in '",
                                     last_name_in(path_), "', expected that of this step"));
  }
  return absl::OkStatus();
}

absl::Status StepReader::check_names() {
  const auto names = files_.list(path_);
  if (!names.ok()) return names.status();
  std::set<std::string> unknown(names->begin(), names->end());
  unknown.erase(kManifestName);
  for (const ManifestFile& file : manifest_.files) {
    const std::string path = join_path(path_, file.name);
    if (unknown.erase(file.name) == 0) {
      return with_errno(damage(path, "got no such file, expected it, because the manifest has it"),
                        ENOENT);
    }
    const auto entry = files_.entry(path);
    if (!entry.ok()) return entry.status();
    if (entry->kind != FileEntry::Kind::kFile) {
      return damage(path, absl::StrCat("got ", kind_name(entry->kind), ", expected a file"));
    }
    if (entry->bytes != file.bytes) {
      return damage(path, absl::StrCat("got ", entry->bytes, " bytes, expected ", file.bytes));
    }
  }
  strays_.assign(unknown.begin(), unknown.end());
  return absl::OkStatus();
}

std::string StepReader::strays_text() const {
  if (strays_.empty()) return "";
  constexpr size_t kMost = 5;
  std::vector<std::string> names;
  for (size_t i = 0; i < strays_.size() && i < kMost; ++i) {
    names.push_back(absl::StrCat("'", printable(strays_[i]), "'"));
  }
  if (strays_.size() > kMost) names.emplace_back("...");
  return absl::StrJoin(names, ", ");
}

absl::Status StepReader::check_header(int64_t rank) {
  const ManifestFile& described = manifest_.files[static_cast<size_t>(rank)];
  const std::string path = join_path(path_, described.name);
  const auto file = file_of(rank);
  if (!file.ok()) return file.status();
  char length[SafetensorsHeader::kLengthBytes];
  if (absl::Status status = (*file)->read(0, absl::MakeSpan(length)); !status.ok()) return status;
  const auto json_bytes = SafetensorsHeader::json_bytes({length, sizeof(length)}, described.bytes);
  if (!json_bytes.ok()) return damage(path, json_bytes.status().message());
  std::string json(static_cast<size_t>(*json_bytes), '\0');
  absl::Status status = (*file)->read(SafetensorsHeader::kLengthBytes, absl::MakeSpan(json));
  if (!status.ok()) return status;
  const int64_t header_bytes = SafetensorsHeader::kLengthBytes + *json_bytes;
  const auto header = SafetensorsHeader::from_json(json, described.bytes - header_bytes);
  if (!header.ok()) return damage(path, header.status().message());
  const std::string wrong = shard_problem(*header, header_bytes, manifest_, rank);
  return wrong.empty() ? absl::OkStatus() : damage(path, wrong);
}

absl::StatusOr<VerifiedFile*> StepReader::file_of(int64_t rank) {
  auto found = open_files_.find(rank);
  if (found == open_files_.end()) {
    if (open_files_.size() >= kMaxOpenFiles) {
      open_files_.erase(std::min_element(
          open_files_.begin(), open_files_.end(),
          [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
    }
    const ManifestFile& described = manifest_.files[static_cast<size_t>(rank)];
    const std::string path = join_path(path_, described.name);
    auto file = files_.open(path);
    if (!file.ok()) return file.status();
    found = open_files_.emplace(rank, OpenFile{}).first;
    found->second.file = std::make_unique<VerifiedFile>(*std::move(file), path, described);
  }
  found->second.used = ++uses_;
  return found->second.file.get();
}

absl::Status StepReader::read(const std::string& name, int64_t begin, absl::Span<char> to) {
  const auto found = manifest_.entries.find(name);
  if (found == manifest_.entries.end()) {
    return absl::NotFoundError(absl::StrCat("[checkpoint] '", path_, "': got no entry '",
                                            printable(name), "', expected one"));
  }
  const ManifestEntry& entry = found->second;
  const int64_t element_bytes = entry.form.element_bytes();
  const auto count = static_cast<int64_t>(to.size()) / element_bytes;
  if (begin < 0 || begin > entry.form.numel() || count > entry.form.numel() - begin ||
      static_cast<int64_t>(to.size()) % element_bytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("[checkpoint] entry '", name, "': got ", to.size(), " bytes from element ",
                     begin, " on to read, expected whole elements of 0 to ", entry.form.numel()));
  }
  const int64_t end = begin + count;
  auto piece = std::partition_point(entry.pieces.begin(), entry.pieces.end(),
                                    [&](const ManifestPiece& p) { return p.end <= begin; });
  for (; begin < end; ++piece) {
    const int64_t part_end = std::min(end, piece->end);
    const auto part_bytes = static_cast<size_t>((part_end - begin) * element_bytes);
    const auto file = file_of(piece->file);
    if (!file.ok()) return file.status();
    absl::Status status = (*file)->read(piece->offset + (begin - piece->begin) * element_bytes,
                                        to.subspan(0, part_bytes));
    if (!status.ok()) return status;
    to.remove_prefix(part_bytes);
    begin = part_end;
  }
  return absl::OkStatus();
}

absl::Status StepReader::verify_file(int64_t rank,
                                     const std::function<void(int64_t bytes)>& on_block) {
  const ManifestFile& described = manifest_.files.at(static_cast<size_t>(rank));
  const auto file = file_of(rank);
  if (!file.ok()) return file.status();
  for (int64_t block = 0; block < blocks_of(described.bytes); ++block) {
    if (absl::Status status = (*file)->verify_block(block); !status.ok()) return status;
    if (on_block) on_block(std::min(kBlockBytes, described.bytes - block * kBlockBytes));
  }
  return absl::OkStatus();
}

absl::Status StepReader::verify_all(const std::function<void(int64_t bytes)>& on_block) {
  for (int64_t rank = 0; rank < manifest_.world; ++rank) {
    if (absl::Status status = verify_file(rank, on_block); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace tessera::internal
