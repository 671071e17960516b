#pragma once

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <absl/status/statusor.h>

#include "tessera/core/process/file_descriptor.h"
#include "tessera/core/process/rank_progress.h"

namespace tessera::internal {

/// A rank's record of why it failed.
struct FailureNote {
  int64_t when_ns = 0;  ///< on the host's monotonic clock, which all processes share
  int culprit = 0;      ///< the rank that caused the failure, according to this rank
  std::string text;
};

/// A launcher's description of its job.
struct JobOutline {
  int launcher = 0;      ///< its pid
  int64_t begin_ns = 0;  ///< when this launch attempt began, on the host's monotonic clock
  int restart_count = 0;
  int max_restarts = 0;
  bool is_supervised = false;        ///< tessera-run --supervise: only rank 0 has a record
  int64_t heartbeat_timeout_ms = 0;  ///< 0: a rank may be silent for ever
};

/// A rank's process.
struct RankRecord {
  int pid = 0;      ///< the process that the launcher started; 0: none yet
  int own_pid = 0;  ///< the process that is the rank; differs from `pid` if a script started it
  std::optional<int> wait_status;  ///< from waitpid(), once the process has ended
};

/// Memory in which the ranks of a job record for their launcher why they fail, before their peers
/// notice: the earliest record names the rank that failed first. Ranks also record their progress
/// and what they wait for. From this the launcher decides whether a restart is worthwhile, and
/// finds frozen ranks; other processes of the user can display it. The launcher makes the page and
/// passes its address in TESSERA_JOB_PAGE. The page needs no file, and no descriptor that a program
/// between launcher and rank could close. Does not use LibTorch, because the launcher does not.
///
/// If a rank misbehaves, the content may be invalid. So functions that read it limit the lengths
/// that they use and the number of their retries.
class JobPage {
 public:
  /// The largest number of ranks that launchers start, and that readers accept.
  static constexpr int kMostRanks = 4096;
  /// The text of a failure note is cut off after this many bytes.
  static constexpr size_t kLongestNote_bytes = 2000;

  /// Local. Makes the launcher's page for `ranks` ranks, and records the launcher's pid and the
  /// start time. ResourceExhausted if there is not enough memory or no descriptor left.
  static absl::StatusOr<std::unique_ptr<JobPage>> create(int ranks, JobOutline outline = {});
  /// Local. Opens the page for rank `rank`, whose process is `pid`. Removes an earlier failure note
  /// of that rank and, if another process was this rank before, the progress that it noted. Returns
  /// null if `address` does not lead to a page for the rank, because the launcher is gone or in
  /// another PID namespace, or /proc is hidden. The job then runs without a page.
  static std::unique_ptr<JobPage> open(const std::string& address, int rank, int pid = ::getpid());
  /// Local. Records in the page that process `pid` runs rank `rank`, which has not opened the page
  /// yet. No effect where open() would return null.
  static void note_arrival(const std::string& address, int rank, int pid = ::getpid());
  /// Local. Opens, for reading, the page that launcher `pid` has open as descriptor `fd`. Returns
  /// null if it is not a page, has another version, or belongs to another process.
  static std::unique_ptr<JobPage> view(int pid, int fd);
  /// Returns true if descriptor `fd` of process `pid` may be a job's page.
  static bool may_be_at(int pid, int fd);
  ~JobPage();
  JobPage(const JobPage&) = delete;
  JobPage& operator=(const JobPage&) = delete;

  /// Returns the address with which ranks open the page, valid while this object lives.
  std::string address() const;

  /// Called by a rank. note_failure() records the rank's failure, unless one is recorded already.
  /// forget_failure() removes the record; call it when the rank carries on after a failure. Neither
  /// function allocates or blocks.
  void note_failure(int culprit, std::string_view text) noexcept;
  void forget_failure() noexcept;
  /// Called by a rank. Returns its progress; note_saved_step() records which step of the job has
  /// been saved.
  RankProgress& own_progress() noexcept;
  void note_saved_step(int64_t step) noexcept;
  /// Like note_failure() with this rank as culprit. If the rank has already recorded its own
  /// failure, with another text, adds `text` to the record.
  void explain_failure(std::string_view text) noexcept;

  /// Called by the launcher when the process of rank `rank` has begun, or ended.
  void note_begin(int rank, int pid) noexcept;
  void note_end(int rank, int wait_status) noexcept;
  /// Called by the launcher. Returns true if its ranks, as processes of the same user, can open the
  /// page. They cannot if /proc does not show the page, or if this process is closed to others.
  bool is_reachable() const;

  /// Called by any process. is_open() returns true if rank `rank` has opened the page; note()
  /// returns the failure that the rank has recorded.
  bool is_open(int rank) const;
  std::optional<FailureNote> note(int rank) const;
  /// Returns the earliest of all notes.
  std::optional<FailureNote> first_note() const;
  const RankProgress& progress(int rank) const;
  RankRecord rank_record(int rank) const;
  /// Returns the last step of the job that is in a checkpoint; 0 if no rank has reported one.
  int64_t saved_step() const;
  JobOutline outline() const;
  int ranks() const { return ranks_; }

 private:
  struct Header;
  struct Record;

  JobPage(FileDescriptor file, char* data, int ranks, int rank);
  static int64_t bytes(int ranks);
  static std::unique_ptr<JobPage> map(int fd, int ranks, int rank);
  static std::unique_ptr<JobPage> find(const std::string& address, int rank);
  void note_process(int pid) noexcept;
  Header& header() const;
  Record& record(int rank) const;

  FileDescriptor file_;  // open in the launcher, not in ranks
  char* const data_;
  const int ranks_;
  const int rank_;  // which rank opened the page; -1: the launcher or a viewer
};

}  // namespace tessera::internal
