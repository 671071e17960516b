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
  std::string silence = {};               ///< why it counts as frozen; "": not frozen
  std::string activity = {};  ///< what it was doing when name_first() named it; may be ""
  bool is_cut_off = false;    ///< `text` is the beginning of a longer one
};

/// The failures of a job, and which of them came first. The first failure is the one that the
/// launcher saw first, unless ranks have noted an earlier one in the job's page: the rank that
/// failed first may take longer to end than the ranks that fail because of it.
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
  /// the first failure, unless one is named already or another rank was recorded as frozen.
  void add_frozen(const RankProcess& rank, std::string silence);

  /// Names the first failure, and returns messages about it and then about the other failures.
  /// Returns no messages if nothing has failed, or the first failure was named before. If
  /// `may_wait`, also returns none while the rank that caused the failure still runs, until
  /// report_deadline(); call this again later. Does not block.
  std::vector<std::string> name_first(const Ranks& ranks, bool may_wait);

  const std::optional<RankFailure>& first() const { return first_; }
  /// Returns the time at which the first failure is named at the latest; nullopt before any
  /// failure. Until that time, ranks that wait for the failed rank can report that they do.
  const std::optional<Clock::time_point>& report_deadline() const { return report_deadline_; }
  /// Returns true if a rank that still runs has opened the page, so that it may yet report that it
  /// waits for another rank.
  bool any_may_report(const Ranks& ranks) const;

  /// Returns a text about `failure`, such as "rank 2 (pid 4711) exited with code 3: <the rank's
  /// note>".
  std::string describe(const RankFailure& failure) const;
  /// Returns the message in `path`, the error file of the rank that failed first. Returns "" if
  /// there is no message, or if describe() already includes it, whole or cut off at the length of a
  /// note.
  std::string left_in(const std::string& path) const;
  /// Returns the exit code of the rank that failed first. If that rank has not ended badly itself,
  /// returns the code of the first rank that has. Returns 0 without a failure.
  int exit_code() const;

 private:
  RankFailure failure_of(const RankProcess& rank, std::string text) const;

  const JobPage& page_;
  const KillReasons kill_reasons_;
  std::optional<RankFailure> frozen_;
  // The failures seen so far: a frozen rank, then the others in the order in which they were seen.
  // Empty once the first failure is named.
  std::vector<RankFailure> unnamed_;
  std::optional<RankFailure> first_;
  std::optional<Clock::time_point> report_deadline_;
  int first_bad_exit_ = 0;
};

}  // namespace tessera::internal
