#include "tessera/tools/run/job_status.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "tessera/core/process/process_status.h"

namespace tessera::internal {
namespace {

using State = RankStatus::State;

/// A rank that computes for long between two calls is also reported as silent.
constexpr double kSilent_s = 10.0;
constexpr size_t kNamed = 4;  // largest number of ranks that a line names
constexpr double kSecond_ns = 1e9;

double seconds_between(int64_t begin_ns, int64_t end_ns) {
  return std::max(0.0, (static_cast<double>(end_ns) - static_cast<double>(begin_ns)) / kSecond_ns);
}

State state_of(const RankStatus& rank, char process, bool is_open) {
  if (rank.exit_status || (rank.pid != 0 && (process == 0 || process == 'Z' || process == 'X'))) {
    return State::kGone;
  }
  if (process == 'T' || process == 't') return State::kStopped;
  const bool has_begun = rank.silent_s.has_value() || rank.wait.has_value() || rank.step > 0;
  if (!is_open || !has_begun) return State::kStarting;
  if (rank.silent_s.value_or(0.0) >= kSilent_s) return State::kSilent;
  return rank.wait ? State::kWaiting : State::kRunning;
}

RankStatus read_rank(const JobPage& page, int rank, int64_t now_ns, const ProcessState& state) {
  const RankProgress& progress = page.progress(rank);
  const RankRecord record = page.rank_record(rank);
  RankStatus read;
  read.rank = rank;
  read.phase = progress.phase();
  read.step = std::max<int64_t>(progress.step(), 0);
  if (record.wait_status) read.exit_status = ExitStatus(*record.wait_status);
  if (const int64_t life_ns = progress.life_ns(); life_ns > 0) {
    read.silent_s = seconds_between(life_ns, now_ns);
  }
  const Pace pace = progress.pace();
  if (pace.last_step_ns > 0) read.step_age_s = seconds_between(pace.last_step_ns, now_ns);
  read.own_s = pace.own_seconds_per_step;
  if (pace.seconds_per_step > 0) read.steps_per_s = 1.0 / pace.seconds_per_step;
  read.wait = progress.wait();
  if (read.wait) read.wait_s = seconds_between(read.wait->since_ns, now_ns);
  // A script may have started the rank's own process; and the rank's record may be wrong.
  read.pid = record.own_pid > 0 ? record.own_pid : record.pid;
  char process = read.pid > 0 ? state(read.pid) : '\0';
  bool has_program = page.is_open(rank);
  if (process == '\0' && read.pid != record.pid) {  // a script that has outlived its program
    read.pid = record.pid;
    process = state(read.pid);
    has_program = false;
    read.wait = std::nullopt;
    read.silent_s = std::nullopt;
  }
  read.state = state_of(read, process, has_program);
  return read;
}

void set_ratios(std::vector<RankStatus>& ranks) {
  std::vector<double> own;
  for (const RankStatus& rank : ranks) {
    if (rank.own_s) own.push_back(*rank.own_s);
  }
  if (own.size() < 2) return;
  const auto middle = own.begin() + static_cast<std::ptrdiff_t>((own.size() - 1) / 2);
  std::nth_element(own.begin(), middle, own.end());
  if (!(*middle > 0)) return;
  for (RankStatus& rank : ranks) {
    if (rank.own_s) rank.ratio = *rank.own_s / *middle;
  }
}

std::string phase_text(const RankStatus& rank) {
  if (!rank.silent_s) return " (in no process group)";
  const char* const name = phase_name(rank.phase);
  return *name == '\0' ? "" : absl::StrCat(" (", name, ")");
}

std::string ending_text(const RankStatus& rank) {
  return rank.exit_status ? absl::StrCat(" (", rank.exit_status->describe(), ")") : "";
}

std::string awaited_text(const JobStatus& job, const RankStatus& waiter, std::vector<bool>& told);

/// Returns ", which is stopped": the state of rank `rank`, for which another one waits.
std::string fate(const JobStatus& job, int rank, std::vector<bool>& told) {
  const RankStatus& awaited = job.ranks[static_cast<size_t>(rank)];
  switch (awaited.state) {
    case State::kStarting:
      return ", which has made no process group";
    case State::kRunning:
      return absl::StrCat(", which runs", phase_text(awaited));
    case State::kStopped:
      return ", which is stopped";
    case State::kSilent:
      return absl::StrCat(", which is silent for ", duration_text(awaited.silent_s.value_or(0)));
    case State::kGone:
      return absl::StrCat(", which is gone", ending_text(awaited));
    case State::kWaiting:
      break;
  }
  if (told[static_cast<size_t>(rank)]) return ", which waits itself";
  return absl::StrCat(", which waits in ", awaited.wait->call, awaited_text(job, awaited, told));
}

/// Returns " for rank 1, which is stopped, and rank 2, which runs"; "" if the awaited ranks are not
/// known.
std::string awaited_text(const JobStatus& job, const RankStatus& waiter, std::vector<bool>& told) {
  const LongWait& wait = *waiter.wait;
  told[static_cast<size_t>(waiter.rank)] = true;
  const size_t named = std::min(wait.ranks.size(), kNamed);
  std::string text;
  for (size_t i = 0; i < named; ++i) {
    const int rank = wait.ranks[i];
    absl::StrAppend(&text, i == 0 ? " for " : ", and ", "rank ", rank);
    const bool is_there = rank >= 0 && rank < static_cast<int>(job.ranks.size());
    if (is_there) absl::StrAppend(&text, fate(job, rank, told));
  }
  const int64_t others = wait.awaited - static_cast<int64_t>(named);
  if (named > 0 && others > 0) absl::StrAppend(&text, ", and ", others, " more");
  return text;
}

}  // namespace

char state_of_process(int pid) {
  const auto status = process_status(pid);
  return status ? status->state : '\0';
}

JobStatus read_status(const JobPage& page, int64_t now_ns, const ProcessState& state) {
  JobStatus status;
  status.outline = page.outline();
  status.saved_step = std::max<int64_t>(page.saved_step(), 0);
  status.age_s = seconds_between(status.outline.begin_ns, now_ns);
  for (int rank = 0; rank < page.ranks(); ++rank) {
    status.ranks.push_back(read_rank(page, rank, now_ns, state));
  }
  set_ratios(status.ranks);
  return status;
}

const char* state_name(State state) {
  switch (state) {
    case State::kStarting:
      return "starting";
    case State::kRunning:
      return "running";
    case State::kWaiting:
      return "waiting";
    case State::kStopped:
      return "stopped";
    case State::kSilent:
      return "silent";
    case State::kGone:
      return "gone";
  }
  return "";
}

std::string describe_state(const JobStatus& job, int rank) {
  const RankStatus& own = job.ranks[static_cast<size_t>(rank)];
  const std::string name = state_name(own.state);
  const std::string where = own.wait ? absl::StrCat(", in ", own.wait->call) : phase_text(own);
  switch (own.state) {
    case State::kStarting:
      return absl::StrCat(name, " (no process group yet)");
    case State::kRunning:
      return absl::StrCat(name, phase_text(own));
    case State::kStopped:
      return absl::StrCat(name, where);
    case State::kSilent:
      return absl::StrCat(name, " for ", duration_text(*own.silent_s), where);
    case State::kGone:
      return absl::StrCat(name, ending_text(own));
    case State::kWaiting:
      break;
  }
  std::vector<bool> told(job.ranks.size(), false);
  return absl::StrCat(name, " ", duration_text(own.wait_s), " in ", own.wait->call,
                      awaited_text(job, own, told));
}

std::string duration_text(double seconds) {
  if (!(seconds < 1e9)) return "long";
  const auto whole = static_cast<int64_t>(seconds);
  if (whole >= 3600) return absl::StrCat(whole / 3600, " h ", whole / 60 % 60, " min");
  if (whole >= 100) return absl::StrCat(whole / 60, " min ", whole % 60, " s");
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", std::floor(seconds * 10) / 10);
  return text;
}

}  // namespace tessera::internal
