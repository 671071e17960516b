#pragma once

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
  int culprit = 0;      ///< the rank that it says began it: itself or another one
  std::string text;
};

/// A launcher's description of its job.
struct JobOutline {
  int launcher = 0;      ///< its pid
  int64_t begin_ns = 0;  ///< of this start of the job, on the host's monotonic clock
  int restart_count = 0;
  int max_restarts = 0;
  bool is_supervised = false;        ///< one command, whose rank 0 alone has a record
  int64_t heartbeat_timeout_ms = 0;  ///< 0: a rank may be silent for ever
};

/// A rank's process.
struct RankRecord {
  int pid = 0;      ///< that the launcher has started; 0: not yet
  int own_pid = 0;  ///< that says it is the rank: another one, where a script comes between
  std::optional<int> wait_status;  ///< as waitpid() has given it, once the process has ended
};

/// Memory in which the ranks of a job record for their launcher why they fail, before their peers
/// learn of it: the earliest record names the rank that failed first. They also record how far they
/// have come and what they wait for. From this the launcher decides whether a restart is worth it
/// and finds frozen ranks; other processes of the user can show it. The launcher makes the page and
/// passes its address in TESSERA_JOB_PAGE. The page needs no file, and no descriptor that a program
/// between launcher and rank could close. Does not use LibTorch, because the launcher does not.
///
/// The content may be invalid if a rank misbehaves, so reads are bounded.
class JobPage {
 public:
  /// Local. Makes the launcher's page for `ranks` ranks, and fills in its pid and the begin.
  /// ResourceExhausted if memory or descriptors are short.
  static absl::StatusOr<std::unique_ptr<JobPage>> create(int ranks, JobOutline outline = {});
  /// Local. Opens the page for rank `rank`, and removes an earlier note of that rank. Returns null
  /// if `address` leads to no page for it, because the launcher is gone or in another PID
  /// namespace, or /proc is hidden. The job then runs without a page.
  static std::unique_ptr<JobPage> open(const std::string& address, int rank);
  /// Local. Opens the page of the launcher `pid`, which has it open as descriptor `fd`, for
  /// reading. Returns null if it is no page, has another version, or belongs to another process.
  static std::unique_ptr<JobPage> view(int pid, int fd);
  /// Returns true if descriptor `fd` of process `pid` may be a job's page.
  static bool may_be_at(int pid, int fd);
  ~JobPage();
  JobPage(const JobPage&) = delete;
  JobPage& operator=(const JobPage&) = delete;

  /// Returns the address at which ranks find the page, valid while this object lives.
  std::string address() const;

  /// Called by a rank. note_failure() records its failure, unless it has a record already.
  /// forget_failure() removes the record, because the rank goes on. Allocates nothing, never
  /// blocks.
  void note_failure(int culprit, std::string_view text) noexcept;
  void forget_failure() noexcept;
  /// Called by a rank. Returns its progress; and records which step of the job has been saved.
  RankProgress& own_progress() noexcept;
  void note_saved_step(int64_t step) noexcept;
  /// Like note_failure() with the rank itself as culprit. If a record already says that the rank
  /// has failed by itself, with another text, adds `text` to it.
  void explain_failure(std::string_view text) noexcept;

  /// Called by the launcher. The process of rank `rank` has begun, or ended.
  void note_begin(int rank, int pid) noexcept;
  void note_end(int rank, int wait_status) noexcept;

  /// Called by any process. is_open(): true if rank `rank` has opened the page. note(): the failure
  /// it has recorded.
  bool is_open(int rank) const;
  std::optional<FailureNote> note(int rank) const;
  /// Returns the earliest of all notes.
  std::optional<FailureNote> first_note() const;
  const RankProgress& progress(int rank) const;
  RankRecord rank_record(int rank) const;
  /// Returns the last step of the job that a checkpoint has; 0 where no rank said so.
  int64_t saved_step() const;
  JobOutline outline() const;
  int ranks() const { return ranks_; }

 private:
  struct Header;
  struct Record;

  JobPage(FileDescriptor file, char* data, int ranks, int rank);
  static int64_t bytes(int ranks);
  static std::unique_ptr<JobPage> map(int fd, int ranks, int rank);
  Header& header() const;
  Record& record(int rank) const;

  FileDescriptor file_;  // the launcher's; none in ranks
  char* const data_;
  const int ranks_;
  const int rank_;  // -1: no rank
};

}  // namespace tessera::internal
