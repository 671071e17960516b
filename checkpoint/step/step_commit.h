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
/// A step is written into a directory of a temporary name. Every rank writes its file there and
/// fsyncs it; rank 0 writes the manifest last, fsyncs it and the directory, and gives the directory
/// its final name by one rename, the commit; then it fsyncs the parent, and only then is the step
/// durable and may another one be deleted. So a directory of a final name is whole, whenever the
/// power fails: everything in it was durable before the rename. A step that exists is never written
/// into. An fsync that fails is not tried again: the kernel may have dropped the data and report
/// success the second time; the step is given up.
///
/// A store of objects has no rename (FileSystem::can_rename()). There the files are written where
/// they stay, and the manifest, which is put whole, last and at once, is the commit: without it
/// there is no step, only what a save has left. It is also the first to go when a step does. The
/// functions below say what lies where; nothing else knows of the difference.

/// Where the files lie of a step that is no step yet, or no more: under the name that `mark`
/// (kTemporary, kTrash) makes of its own, or, without rename, under its own.
std::string marked_path(const ReadableFileSystem& files, const std::string& directory, int64_t step,
                        std::string_view mark, std::string_view nonce);
/// What is there if and only if the step `path`, or what it became when it was set aside, is: the
/// directory, or, without rename, the manifest.
std::string sign_of_commit(const ReadableFileSystem& files, const std::string& path);
/// Whether `path`, which a listing of its directory has, is a step, or one that was set aside: with
/// rename the name says so, and nothing is read.
absl::StatusOr<bool> is_step(ReadableFileSystem& files, const std::string& path);

/// Gives the step `from` the name `to`. Without rename it copies the step first, the manifest
/// after all that it names, so that it is whole under one name at any time; on an error both may be
/// there. What is damaged and cannot be read is left out, and named on stderr: it must not keep the
/// name. Nothing to do where the names are equal (marked_path()).
absl::Status move_step(FileSystem& files, const std::string& from, const std::string& to);
/// Removes what there is of the step `path`: the manifest first, and nothing else before that has
/// succeeded. No error if there is nothing.
absl::Status remove_step(FileSystem& files, const std::string& path);

/// Begins step `step` in the directory of a run: makes the temporary directory for the ranks' files
/// and gives its path. One rank calls it; the others learn `nonce`. AlreadyExists where the step
/// is there.
absl::StatusOr<std::string> begin_step(FileSystem& files, const std::string& directory,
                                       int64_t step, const std::string& nonce);

/// The manifest of a step: `head` has all but files and entries, `summaries` one for each rank.
/// InvalidArgument where they are of different saves, or do not have every element of every entry
/// exactly once. Local.
absl::StatusOr<Manifest> make_manifest(Manifest head, std::vector<ShardSummary> summaries);

/// Commits a step that begin_step() began and whose files are written (Note [Commit]). On an error
/// what was written is removed, and no step `manifest.step` is there, with two exceptions that the
/// message says: where the last fsync fails, the step is whole and in its place, but may be gone
/// after a power failure; and where a store puts the manifest, says that it has not, and does not
/// remove it, the step may be whole.
absl::Status commit_step(FileSystem& files, const std::string& directory, const Manifest& manifest);

/// Gives a step up that begin_step() began: removes what there is of it.
absl::Status abandon_step(FileSystem& files, const std::string& directory, int64_t step,
                          const std::string& nonce);

}  // namespace tessera::internal
