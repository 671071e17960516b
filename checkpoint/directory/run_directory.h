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
  /// Makes `path` if only its last name is missing, locks it, proves by a probe that files
  /// can be written, and removes what a job left there that died while it saved or deleted; what
  /// cannot be removed yet is named on stderr and stays.
  /// `holder` is what another job is told (holder_of_this_process()). FailedPrecondition where
  /// another job holds the lock, with that job's text, or `path` is no directory. Where there are
  /// no locks it goes on without one, and says so on stderr, once per process. `files` must outlive
  /// this.
  static absl::StatusOr<std::unique_ptr<RunDirectory>> open(FileSystem& files,
                                                            const std::string& path,
                                                            const std::string& holder);

  const std::string& path() const { return path_; }

  /// Remembers that step `step` is durable and whole: this job committed it without an error, or
  /// verified every byte of it.
  void note_verified(int64_t step) { verified_.insert(step); }

  /// Gives step `step` a name that is no step's, "step-<N>.<why>-<nonce>", and says so on stderr:
  /// nothing is lost, and nothing loads it by mistake.
  absl::Status set_aside(int64_t step, std::string_view why);
  /// All steps after `last`, the newest first.
  absl::Status set_aside_after(int64_t last, std::string_view why);

  /// Makes a file of a new name, by which other ranks know this directory from another of the same
  /// path, and gives the name. remove_leftovers() removes it.
  absl::StatusOr<std::string> leave_mark();

  /// Removes what saves and deletions have left that did not end. Not while a step is written.
  absl::Status remove_leftovers();

  /// What retain() did.
  struct Retained {
    std::vector<int64_t> deleted;
    absl::Status status;  ///< the first error; each step is tried
  };
  /// Deletes the steps that `retention` does not keep: each is renamed, or loses its manifest,
  /// first, so that no half of a step looks like one. Files of a step that its manifest does not
  /// name go with it, and are named on stderr. Deletes nothing unless one of the steps that remain
  /// is known to be whole (note_verified()) and its files are still there: DataLoss otherwise.
  /// Steps that somebody reads stay, and so does whatever is being written.
  Retained retain(const Retention& retention);

 private:
  RunDirectory(FileSystem& files, std::string path, std::unique_ptr<FileLock> lock);

  absl::Status probe();
  absl::Status find_whole_step_but(const std::vector<int64_t>& doomed);
  /// Returns whether it did: not if somebody reads the step.
  absl::StatusOr<bool> delete_step(int64_t step);

  FileSystem& files_;
  const std::string path_;
  const std::unique_ptr<FileLock> lock_;  // null where there are no locks
  std::set<int64_t> verified_;
};

/// What a job writes into its lock: "pid 12 (started 2026-11-28 14:03:22 UTC) on host a". Local.
std::string holder_of_this_process();

}  // namespace tessera::internal
