#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "tessera/checkpoint/directory/retention.h"
#include "tessera/checkpoint/files/file_operations.h"

namespace tessera::internal {

/// The directory of a run, for the one job that saves there. Only one rank of that job has this
/// object. Jobs that only load need none. Belongs to one thread.
class RunDirectory {
 public:
  /// Makes the directory `path` if it does not exist (its parent must exist) and locks it. Then
  /// writes a probe file to check that files can be written, and removes leftovers of a job that
  /// died during a save or deletion. Leftovers that cannot be removed yet stay and are named on
  /// stderr. `holder` (holder_of_this_process()) is the text in the lock. Returns
  /// FailedPrecondition if `path` is not a directory, or if another job holds the lock; in the
  /// second case the message has that job's text. If the file system has no locks, continues
  /// without one and says so on stderr, once per process. `files` must outlive this.
  static absl::StatusOr<std::unique_ptr<RunDirectory>> open(FileSystem& files,
                                                            const std::string& path,
                                                            const std::string& holder);

  const std::string& path() const { return path_; }

  /// Remembers that step `step` is durable and whole: this job committed it without an error, or
  /// verified every byte of it.
  void note_verified(int64_t step) { verified_.insert(step); }

  /// Renames step `step` to "step-<N>.<why>-<nonce>", which is not a step's name, and says so on
  /// stderr. No data is lost, and no job will load the step by mistake.
  absl::Status set_aside(int64_t step, std::string_view why);
  /// Sets all steps after `last` aside, the newest first.
  absl::Status set_aside_after(int64_t last, std::string_view why);

  /// Creates a file with a new name and returns the name. Other ranks look for the file to check
  /// that they see this directory. remove_leftovers() removes the file.
  absl::StatusOr<std::string> leave_mark();

  /// Removes leftovers of unfinished saves and deletions. Must not be called during a save.
  absl::Status remove_leftovers();

  /// The result of retain().
  struct Retained {
    std::vector<int64_t> deleted;
    absl::Status status;  ///< the first error; the other steps are tried even after an error
  };
  /// Deletes the steps that `retention` does not keep, but only if some step that stays is known to
  /// be whole (note_verified()) and still has its files; else returns DataLoss. A half-deleted step
  /// must not look like a step, so each step is first renamed, or, if the file system has no
  /// rename, loses its manifest first. Files that the step's manifest does not name are deleted
  /// with the step and named on stderr. Steps that are being read or written stay.
  Retained retain(const Retention& retention);

 private:
  RunDirectory(FileSystem& files, std::string path, std::unique_ptr<FileLock> lock);

  absl::Status probe();
  absl::Status find_whole_step_but(const std::vector<int64_t>& doomed);
  /// Deletes step `step`. Returns false if the step stays because a job is reading it.
  absl::StatusOr<bool> delete_step(int64_t step);

  FileSystem& files_;
  const std::string path_;
  const std::unique_ptr<FileLock> lock_;  // null if the file system has no locks
  std::set<int64_t> verified_;
};

/// Returns what a job writes into its lock: "pid 12 (started 2026-11-28 14:03:22 UTC) on host a".
/// Local.
std::string holder_of_this_process();

}  // namespace tessera::internal
