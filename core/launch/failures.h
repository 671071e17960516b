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
  std::string name;  ///< what messages call it
  pid_t pid = 0;
  std::optional<ExitStatus> exit_status;  ///< nothing: it has not ended, and holds up the others
  std::string text;                       ///< what was noted about it; may be empty
  int64_t step = 0;                       ///< how many steps it had trained; 0: not known
  bool has_trained = false;               ///< one of them since it was started
  std::string silence = {};               ///< why it was ended as frozen; "": it was not
  std::string activity = {};              ///< what it did when it was named, if it had not ended
};

/// The failures of a job, and which one began it. That is the first that was seen, unless ranks
/// have noted in the job's page who failed before that: it may take longer to end than those who
/// fail for want of it.
class Failures {
 public:
  using Clock = std::chrono::steady_clock;
  using Ranks = std::vector<const RankProcess*>;  ///< of the job, by number

  /// `page`: where the ranks note why they fail; must outlive this.
  explicit Failures(const JobPage& page) : page_(page) {}

  /// A rank has ended badly. Returns what to say; "" as long as the first failure is not named.
  std::string add(const RankProcess& rank);
  /// A rank is frozen, as `silence` says, and about to be killed: it is the first that failed, if
  /// none is named yet.
  void add_frozen(const RankProcess& rank, std::string silence);

  /// Names the first failure, once; returns what to say about it and then about the others, or
  /// nothing: there is none, or it is named already, or the one that began it has yet to end. That
  /// one is waited for no longer than until report_deadline(), and not at all where `may_wait` is
  /// false.
  std::vector<std::string> name_first(const Ranks& ranks, bool may_wait);

  const std::optional<RankFailure>& first() const { return first_; }
  /// When the first failure is named at the latest, and how long ranks that may be waiting for the
  /// one that failed get to say so; nothing before there is one.
  const std::optional<Clock::time_point>& report_deadline() const { return report_deadline_; }
  /// Whether a rank that runs may be waiting for another one.
  bool any_may_report(const Ranks& ranks) const;

  /// "rank 2 (pid 4711) exited with code 3: <what was noted>".
  std::string describe(const RankFailure& failure) const;
  /// What the rank that failed first has left in its error file at `path`; "" if there is nothing,
  /// or describe() says it.
  std::string left_in(const std::string& path) const;
  /// That of the rank that failed first, or where that has not ended badly, of the first that has;
  /// 0 without a failure.
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
