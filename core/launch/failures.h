#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/launch/exit_status.h"
#include "tessera/core/launch/kill_reasons.h"
#include "tessera/core/launch/rank_process.h"
#include "tessera/core/process/job_page.h"

namespace tessera::internal {

/// How a rank failed.
struct RankFailure {
  int rank = 0;
  std::string name;  ///< name in messages
  pid_t pid = 0;
  std::optional<ExitStatus> exit_status;  ///< unset: it still runs and blocks the others
  std::string text;                       ///< printable note about its failure; may be empty
  int64_t step = 0;                       ///< number of steps it had trained; 0: not known
  bool has_trained = false;               ///< it has trained a step since it was started
  std::string silence = {};               ///< why it counts as frozen; "": it does not
  std::string activity = {};              ///< its activity when named, if it still ran
  bool is_cut_off = false;                ///< `text` is the beginning of a longer one
};

/// The failures of a job, and which of them came first. That is the first failure that the launcher
/// saw, unless ranks have noted an earlier one in the job's page: the rank that failed first may
/// take longer to end than the ranks that fail because of it.
class Failures {
 public:
  using Clock = std::chrono::steady_clock;
  using Ranks = std::vector<const RankProcess*>;  ///< all ranks of the job, by number

  /// `page`, in which the ranks note why they fail, must outlive this.
  explicit Failures(const JobPage& page) : page_(page) {}

  /// Records that `rank` has ended badly; `text` says why, if that is known. Returns the message to
  /// print; "" until the first failure is named.
  std::string add(const RankProcess& rank, std::string text = "");
  /// Records that `rank` is frozen, as `silence` describes, and about to be killed. It counts as
  /// the first failure unless one is named already.
  void add_frozen(const RankProcess& rank, std::string silence);

  /// Names the first failure, once. Returns messages about it and then about the other failures;
  /// none if nothing has failed, or the first failure is named already. Does not block: if the rank
  /// that caused the failure still runs, returns nothing until report_deadline(), but names the
  /// failure at once if `may_wait` is false.
  std::vector<std::string> name_first(const Ranks& ranks, bool may_wait);

  const std::optional<RankFailure>& first() const { return first_; }
  /// Returns when the first failure is named at the latest. Until then, ranks that may be waiting
  /// for the failed rank can report it. nullopt before any failure.
  const std::optional<Clock::time_point>& report_deadline() const { return report_deadline_; }
  /// Returns true if a running rank may be waiting for another one.
  bool any_may_report(const Ranks& ranks) const;

  /// Returns "rank 2 (pid 4711) exited with code 3: <the rank's note>".
  std::string describe(const RankFailure& failure) const;
  /// Returns the message that the rank that failed first left in its error file at `path`; "" if
  /// there is none, or describe() already includes it, or as much of it as a note has room for.
  std::string left_in(const std::string& path) const;
  /// Returns the exit code of the rank that failed first or, if that rank did not end badly, of the
  /// first rank that did; 0 without a failure.
  int exit_code() const;

 private:
  RankFailure failure_of(const RankProcess& rank, std::string text) const;

  const JobPage& page_;
  const KillReasons kill_reasons_;
  std::optional<RankFailure> frozen_;
  std::vector<RankFailure> unnamed_;  // in the order they were seen, until the first is known
  std::optional<RankFailure> first_;
  std::optional<Clock::time_point> report_deadline_;
  int first_bad_exit_ = 0;
};

}  // namespace tessera::internal
