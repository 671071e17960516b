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

/// The directory of a run, for the one job that saves there; one rank of it has this object. Jobs
/// that only load need none. Belongs to one thread.
class RunDirectory {
 public:
  /// Makes `path` if only its last name is missing, locks it, writes a probe file to check that
  /// files can be written, and removes what a job left that died while it saved or deleted. What
  /// cannot be removed yet stays and is named on stderr. `holder` is the text that another job is
  /// shown (holder_of_this_process()). FailedPrecondition if another job holds the lock, with that
  /// job's text, or if `path` is no directory. If there are no locks it goes on without, and says
  /// so on stderr, once per process. `files` must outlive this.
  static absl::StatusOr<std::unique_ptr<RunDirectory>> open(FileSystem& files,
                                                            const std::string& path,
                                                            const std::string& holder);

  const std::string& path() const { return path_; }

  /// Remembers that step `step` is durable and whole: this job committed it without an error, or
  /// verified every byte of it.
  void note_verified(int64_t step) { verified_.insert(step); }

  /// Renames step `step` to "step-<N>.<why>-<nonce>", which is no step's name, and says so on
  /// stderr: nothing is lost, and nothing loads it by mistake.
  absl::Status set_aside(int64_t step, std::string_view why);
  /// Sets all steps after `last` aside, the newest first.
  absl::Status set_aside_after(int64_t last, std::string_view why);

  /// Makes a file with a new name, by which other ranks check that they see this directory and not
  /// another of the same path. Returns the name. remove_leftovers() removes the file.
  absl::StatusOr<std::string> leave_mark();

  /// Removes what unfinished saves and deletions have left. Not to be called during a save.
  absl::Status remove_leftovers();

  /// The result of retain().
  struct Retained {
    std::vector<int64_t> deleted;
    absl::Status status;  ///< the first error; each step is tried
  };
  /// Deletes the steps that `retention` does not keep: each is first renamed, or loses its
  /// manifest, so that no half of a step looks like one. Files of a step that its manifest does not
  /// name go with it, and are named on stderr. Deletes nothing unless one of the steps that remain
  /// is known to be whole (note_verified()) and its files are still there: DataLoss otherwise.
  /// Steps that are being read or written stay.
  Retained retain(const Retention& retention);

 private:
  RunDirectory(FileSystem& files, std::string path, std::unique_ptr<FileLock> lock);

  absl::Status probe();
  absl::Status find_whole_step_but(const std::vector<int64_t>& doomed);
  /// Returns false if the step is being read, and so stays.
  absl::StatusOr<bool> delete_step(int64_t step);

  FileSystem& files_;
  const std::string path_;
  const std::unique_ptr<FileLock> lock_;  // null where there are no locks
  std::set<int64_t> verified_;
};

/// Returns what a job writes into its lock: "pid 12 (started 2026-11-28 14:03:22 UTC) on host a".
/// Local.
std::string holder_of_this_process();

}  // namespace tessera::internal
