#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/checkpoint/format/manifest.h"
#include "tessera/checkpoint/step/shard_writer.h"

namespace tessera::internal {

/// Note [Commit]
/// ~~~~~~~~~~~~~
/// A step is written into a directory with a temporary name. Every rank writes its file there and
/// fsyncs it. Rank 0 then writes the manifest, fsyncs it and the directory, and gives the directory
/// its final name by one rename, the commit. Then it fsyncs the parent. Only then is the step
/// durable, and only then may another step be deleted. So a directory with a final name is whole,
/// whenever the power fails: everything in it was durable before the rename. An existing step is
/// never written into. An fsync that fails is not tried again, because the kernel may have dropped
/// the data and report success the second time; the step is given up.
///
/// An object store has no rename (FileSystem::can_rename()). There the files are written where they
/// stay, and the manifest, which is put last and atomically, is the commit: without it there is no
/// step, only leftovers of a save. When a step is removed the manifest goes first. The functions
/// below hide this difference from all other code.

/// Returns the directory of the files of a step that is not committed yet or is being removed. Its
/// name is the step's name with `mark` (kTemporary, kTrash), or, without rename, the step's own
/// name.
std::string marked_path(const ReadableFileSystem& files, const std::string& directory, int64_t step,
                        std::string_view mark, std::string_view nonce);
/// Returns the path that exists if and only if the step `path` (committed or set aside) does: the
/// directory, or, without rename, the manifest.
std::string commit_marker(const ReadableFileSystem& files, const std::string& path);
/// Returns true if `path`, which has the name of a step (committed or set aside), is one. With
/// rename every listed path with such a name is one, so nothing is read.
absl::StatusOr<bool> is_step(ReadableFileSystem& files, const std::string& path);

/// Renames the step `from` to `to`. Without rename, copies all files, the manifest last, and then
/// removes `from`. So at any time the step is whole under at least one of the names; on an error it
/// may be under both. Damaged files that cannot be read are left out and named on stderr: if they
/// were an error, the step would keep its old name for ever. Does nothing if the names are equal
/// (marked_path()).
absl::Status move_step(FileSystem& files, const std::string& from, const std::string& to);
/// Removes the step `path`, whether it is whole or not. Removes the manifest first; if that fails,
/// removes nothing else. No error if nothing exists.
absl::Status remove_step(FileSystem& files, const std::string& path);

/// Begins step `step` in the directory of a run: makes the temporary directory for the ranks' files
/// and returns its path. Only one rank calls this, and tells the other ranks `nonce`. AlreadyExists
/// if the step exists.
absl::StatusOr<std::string> begin_step(FileSystem& files, const std::string& directory,
                                       int64_t step, const std::string& nonce);

/// Returns the manifest of a step. `head` has all fields except files and entries; `summaries` has
/// one summary per rank. InvalidArgument if the summaries are from different saves, or do not have
/// every element of every entry exactly once. Local.
absl::StatusOr<Manifest> make_manifest(Manifest head, std::vector<ShardSummary> summaries);

/// Commits a step that begin_step() began and whose files are written (Note [Commit]). On an error
/// removes what was written, so that this save leaves no step, with two exceptions, which the
/// message reports. If the last fsync fails, the step is whole and in its place, but may be gone
/// after a power failure. If an object store puts the manifest but reports failure, and then fails
/// to remove the manifest, the step may be whole. If another job has committed the step to an
/// object store first, returns AlreadyExists and removes nothing.
absl::Status commit_step(FileSystem& files, const std::string& directory, const Manifest& manifest);

/// Gives up a step that begin_step() began, and removes its files.
absl::Status abandon_step(FileSystem& files, const std::string& directory, int64_t step,
                          const std::string& nonce);

}  // namespace tessera::internal
