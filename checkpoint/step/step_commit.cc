#include "tessera/checkpoint/step/step_commit.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/checkpoint/format/step_names.h"

namespace tessera::internal {
namespace {

/// Adds a rank's file and pieces to `manifest`, which has those of all lower ranks already.
absl::Status add_summary(Manifest& manifest, ShardSummary summary) {
  if (summary.nonce != manifest.nonce || summary.step != manifest.step) {
    return absl::InvalidArgumentError(absl::StrCat(
        "[checkpoint] rank ", summary.rank, ": got a file of step ", summary.step,
        ", expected one of this save of step ", manifest.step, "; save one step after the other"));
  }
  for (auto& [name, theirs] : summary.entries) {
    for (ManifestPiece& piece : theirs.pieces) piece.file = summary.rank;
    const auto [entry, is_new] = manifest.entries.try_emplace(name, theirs);
    if (is_new) continue;
    ManifestEntry& ours = entry->second;
    if (ours.form != theirs.form) {
      return absl::InvalidArgumentError(absl::StrCat(
          "[checkpoint] entry '", name, "': got other sizes, strides or dtype from rank ",
          summary.rank, " than from a rank before it, expected the same"));
    }
    ours.pieces.insert(ours.pieces.end(), theirs.pieces.begin(), theirs.pieces.end());
  }
  manifest.files.push_back(std::move(summary.file));
  return absl::OkStatus();
}

/// Checks on rank 0 that it sees every rank's file in its full length.
absl::Status check_files(FileSystem& files, const std::string& path, const Manifest& manifest) {
  for (const ManifestFile& file : manifest.files) {
    const std::string name = join_path(path, file.name);
    const auto entry = files.entry(name);
    const char* const remedy = "; save to a directory that all ranks share";
    if (!entry.ok()) {
      return {entry.status().code(), absl::StrCat(entry.status().message(), remedy)};
    }
    if (entry->kind != FileEntry::Kind::kFile || entry->bytes != file.bytes) {
      return absl::FailedPreconditionError(
          absl::StrCat("[checkpoint] '", name, "': got ", entry->bytes, " bytes, expected the ",
                       file.bytes, " that its rank has written", remedy));
    }
  }
  return absl::OkStatus();
}

absl::Status write_manifest(FileSystem& files, const std::string& path, const Manifest& manifest) {
  const auto text = manifest.to_text();
  if (!text.ok()) {
    return {text.status().code(),
            absl::StrCat("[checkpoint] '", path, "': ", text.status().message())};
  }
  const auto file = files.create(join_path(path, kManifestName));
  if (!file.ok()) return file.status();
  absl::Status status = (*file)->write_all(*text);
  if (status.ok()) status = (*file)->sync();
  if (status.ok()) status = (*file)->close();
  return status;
}

}  // namespace

std::string marked_path(const ReadableFileSystem& files, const std::string& directory, int64_t step,
                        std::string_view mark, std::string_view nonce) {
  return join_path(directory,
                   files.can_rename() ? marked_step_name(step, mark, nonce) : step_name(step));
}

std::string commit_marker(const ReadableFileSystem& files, const std::string& path) {
  return files.can_rename() ? path : join_path(path, kManifestName);
}

absl::StatusOr<bool> is_step(ReadableFileSystem& files, const std::string& path) {
  if (files.can_rename()) return true;
  return exists(files, commit_marker(files, path));
}

absl::Status move_step(FileSystem& files, const std::string& from, const std::string& to) {
  if (from == to) return absl::OkStatus();
  if (files.can_rename()) return files.rename(from, to);
  // Copies in descending order of names, so "manifest.json" comes after the ranks' files.
  absl::Status status = copy_tree(files, from, to);
  return status.ok() ? remove_step(files, from) : status;
}

absl::Status remove_step(FileSystem& files, const std::string& path) {
  absl::Status status = files.remove_file(join_path(path, kManifestName));
  return status.ok() || absl::IsNotFound(status) ? remove_tree(files, path) : status;
}

absl::StatusOr<std::string> begin_step(FileSystem& files, const std::string& directory,
                                       int64_t step, const std::string& nonce) {
  const std::string committed = join_path(directory, step_name(step));
  const auto is_there = exists(files, commit_marker(files, committed));
  if (!is_there.ok()) return is_there.status();
  if (*is_there) {
    return absl::AlreadyExistsError(absl::StrCat("[checkpoint] '", committed,
                                                 "': got a step that exists, expected a new one; ",
                                                 "load it, move it away, or save elsewhere"));
  }
  const std::string path = marked_path(files, directory, step, kTemporary, nonce);
  if (absl::Status status = files.make_directory(path); !status.ok()) return status;
  return path;
}

absl::StatusOr<Manifest> make_manifest(Manifest head, std::vector<ShardSummary> summaries) {
  std::sort(summaries.begin(), summaries.end(),
            [](const ShardSummary& a, const ShardSummary& b) { return a.rank < b.rank; });
  for (size_t i = 0; i < summaries.size(); ++i) {
    if (summaries[i].rank != static_cast<int64_t>(i)) {
      return absl::InvalidArgumentError(absl::StrCat("[checkpoint] got a summary of rank ",
                                                     summaries[i].rank, ", expected one of rank ",
                                                     i, ": one for each rank"));
    }
    absl::Status status = add_summary(head, std::move(summaries[i]));
    if (!status.ok()) return status;
  }
  for (auto& [name, entry] : head.entries) {
    std::sort(entry.pieces.begin(), entry.pieces.end(),
              [](const ManifestPiece& a, const ManifestPiece& b) { return a.begin < b.begin; });
  }
  if (const std::string wrong = head.problem(); !wrong.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("[checkpoint] step ", head.step, " of all ranks together: ", wrong));
  }
  return head;
}

absl::Status commit_step(FileSystem& files, const std::string& directory,
                         const Manifest& manifest) {
  const std::string path = marked_path(files, directory, manifest.step, kTemporary, manifest.nonce);
  const std::string committed = join_path(directory, step_name(manifest.step));
  absl::Status status = check_files(files, path, manifest);
  if (status.ok()) status = write_manifest(files, path, manifest);
  if (status.ok()) status = files.sync_directory(path);
  if (status.ok()) status = move_step(files, path, committed);
  if (!status.ok()) {
    // In an object store, AlreadyExists means that another job has committed the step first. All
    // files then belong to that job and must stay.
    if (path == committed && absl::IsAlreadyExists(status)) return status;
    const absl::Status removal =
        path == committed ? remove_step(files, path) : remove_tree(files, path);
    if (removal.ok()) return status;
    return {status.code(), absl::StrCat(status.message(), "; and what was written is still there",
                                        path == committed ? ", perhaps as a whole step: " : ": ",
                                        removal.message())};
  }
  status = files.sync_directory(directory);
  if (status.ok()) return status;
  return {status.code(),
          absl::StrCat(status.message(), "; '", committed,
                       "' is whole and in its place, but may be gone after a power failure")};
}

absl::Status abandon_step(FileSystem& files, const std::string& directory, int64_t step,
                          const std::string& nonce) {
  const std::string path = marked_path(files, directory, step, kTemporary, nonce);
  if (!files.can_rename()) {
    const auto is_there = is_step(files, path);
    if (!is_there.ok()) return is_there.status();
    // Another job has committed the step, so the files belong to that job.
    if (*is_there) return absl::OkStatus();
  }
  return remove_tree(files, path);
}

}  // namespace tessera::internal
