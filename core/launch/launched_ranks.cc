#include "tessera/core/launch/launched_ranks.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <absl/status/statusor.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/launch/random_text.h"
#include "tessera/core/launch/store_directory.h"
#include "tessera/core/launch/worker_environment.h"
#include "tessera/core/process/available_cores.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/core/process/progress_report.h"
#include "tessera/environment.h"
#include "tessera/errors.h"

namespace tessera::internal {
namespace {

/// If several of the signals that end a job come within this time, they count as one request,
/// because some shells send a signal both to the process and to its group.
constexpr std::chrono::milliseconds kOneRequest(250);
/// How long to wait until ranks that were sent SIGKILL have ended. The kernel ends a killed process
/// almost at once, unless a device holds it.
constexpr std::chrono::seconds kTimeToDie(10);

template <typename Value>
Value value_or_throw(absl::StatusOr<Value> value) {
  if (value.ok()) return *std::move(value);
  throw std::runtime_error(absl::StrCat("[launch] ", std::string(value.status().message())));
}

/// Returns how often tessera-run --supervise has restarted this program.
int restart_count() {
  int count = 0;
  const std::string text = process_environment("TESSERA_RESTART_COUNT").value_or("");
  return absl::SimpleAtoi(text, &count) ? count : 0;
}

}  // namespace

LaunchedRanks::LaunchedRanks(std::chrono::milliseconds grace)
    : grace_(grace), directory_(value_or_throw(create_store_directory())) {}

LaunchedRanks::~LaunchedRanks() {
  signal_groups(SIGKILL);
  for (RankProcess& rank : ranks_) {
    siginfo_t ended = {};
    if (!rank.exit_status() && !is_abandoned_) {
      ::waitid(P_PID, static_cast<id_t>(rank.pid()), &ended, WEXITED | WNOWAIT);
    }
    rank.reap_with_group();
  }
  if (watcher_ != nullptr) watcher_->finish();
  remove_store_directory(directory_);
}

void LaunchedRanks::start(int count, std::vector<std::string> arguments,
                          const std::vector<std::string>& variables) {
  watcher_ = value_or_throw(Watcher::start(directory_));
  page_ = value_or_throw(JobPage::create(count, {.restart_count = restart_count()}));
  failures_ = std::make_unique<Failures>(*page_);
  WorkerPlace place{.world_size = count,
                    .core_count = available_cores(),
                    .store = absl::StrCat("file://", directory_, "/store"),
                    .job_page = page_->address(),
                    .run_id = random_text(),
                    .job_token = random_text(),
                    .cores = cores_of(),
                    .restart_count = restart_count()};
  if (place.job_token.empty()) {
    throw std::runtime_error("[launch] getrandom gave no secret for the job");
  }
  std::vector<std::string> inherited;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    inherited.emplace_back(*entry);
  // The path of this program may name another file by now, so do not use it.
  RankProgram program{.arguments = std::move(arguments), .file = "/proc/self/exe"};
  ranks_.reserve(static_cast<size_t>(count));
  for (place.rank = 0; place.rank < count; ++place.rank) {
    place.error_file = error_file(place.rank);
    program.name = absl::StrCat("rank ", place.rank);
    program.environment = worker_environment(inherited, place);
    program.environment.insert(program.environment.end(), variables.begin(), variables.end());
    ranks_.push_back(value_or_throw(
        RankProcess::start(place.rank, program, *watcher_, STDOUT_FILENO, STDERR_FILENO)));
    page_->note_begin(place.rank, ranks_.back().pid());
  }
}

int LaunchedRanks::wait(const CaughtSignals& signals) {
  while (count_running() > 0 && !is_abandoned_) {
    signals.wait_until(next_deadline());
    pass_on(signals);
    reap();
    name_first_failure();
    check_deadlines();
  }
  if (!failures_->first()) return signal_ == 0 ? 0 : 128 + signal_;
  const RankFailure& first = *failures_->first();
  // If tessera-run --supervise has started this program, tell it what the ranks have done. To
  // tessera-run this process is rank 0 of the command.
  report_failures(0, 1);
  report_step(first.step);
  if (first.has_trained) report_step_end(/*sees_waits=*/false);
  report_saved_step(page_->saved_step());
  std::string text = absl::StrCat("[launch] ", failures_->describe(first));
  const std::string left = failures_->left_in(error_file(first.rank));
  if (!left.empty()) absl::StrAppend(&text, ": ", left);
  throw RankError({.rank = first.rank,
                   .exit_code = std::max(1, failures_->exit_code()),
                   .signal = first.exit_status ? first.exit_status->signal() : 0},
                  text);
}

std::string LaunchedRanks::error_file(int rank) const {
  return absl::StrCat(directory_, "/rank_", rank, "_error.json");
}

LaunchedRanks::Deadline LaunchedRanks::next_deadline() const {
  if (kill_at_) return give_up_at_ ? give_up_at_ : kill_at_;
  return failures_->report_deadline();
}

void LaunchedRanks::pass_on(const CaughtSignals& signals) {
  for (const int signal : CaughtSignals::kPassedOn) {
    if (signals.has_come(signal)) signal_groups(signal);
  }
  const auto now = Clock::now();
  for (const int signal : CaughtSignals::kEnding) {
    if (!signals.has_come(signal)) continue;
    if (signal_ == 0) {
      signal_ = signal;
      signalled_ = now;
      end_by(signal);
    } else if (now - signalled_ >= kOneRequest) {
      kill_at_ = now;
    }
  }
}

void LaunchedRanks::reap() {
  std::vector<const RankProcess*> ended;
  for (RankProcess& rank : ranks_) {
    if (!rank.reap_with_group()) continue;
    watcher_->forget(rank.pid());
    page_->note_end(rank.rank(), rank.exit_status()->wait_status());
    ended.push_back(&rank);
  }
  // If several ranks have ended since the last look, first add those that died of a signal: the
  // signal is more likely the cause, and the errors of the others its consequences.
  std::stable_partition(ended.begin(), ended.end(),
                        [](const RankProcess* rank) { return rank->exit_status()->signal() != 0; });
  for (const RankProcess* rank : ended) {
    const bool is_by_us = kill_at_ && rank->exit_status()->is_by_launcher(signal_);
    if (!rank->exit_status()->success()) {
      if (!is_by_us) failures_->add(*rank);
    } else if (!kill_at_ && is_missing(*rank)) {
      failures_->add(*rank, "it ended before it reached launch()");
    }
  }
}

/// Returns true if the rank has certainly reached neither launch() nor init_process_group(), so
/// that it has not done what it was started for.
bool LaunchedRanks::is_missing(const RankProcess& rank) const {
  return page_->rank_record(rank.rank()).own_pid == 0 && page_->is_reachable();
}

/// Names the first failure as soon as it is known. Ends the other ranks after that, once they have
/// had time to report what they waited for.
void LaunchedRanks::name_first_failure() {
  Failures::Ranks all;
  for (const RankProcess& rank : ranks_) all.push_back(&rank);
  failures_->name_first(all, /*may_wait=*/!kill_at_ && count_running() > 0);
  if (!failures_->first() || kill_at_) return;
  const bool is_late = Clock::now() >= *failures_->report_deadline();
  if (is_late || !failures_->any_may_report(all)) end_by(SIGTERM);
}

void LaunchedRanks::check_deadlines() {
  const auto now = Clock::now();
  if (give_up_at_) {
    is_abandoned_ = now >= *give_up_at_;
  } else if (kill_at_ && now >= *kill_at_) {
    signal_groups(SIGKILL);
    give_up_at_ = now + kTimeToDie;
  }
}

void LaunchedRanks::end_by(int signal) {
  signal_groups(signal);
  signal_groups(SIGCONT);
  if (!kill_at_) kill_at_ = Clock::now() + grace_;
}

void LaunchedRanks::signal_groups(int signal) {
  for (RankProcess& rank : ranks_) rank.signal_group(signal);
}

int64_t LaunchedRanks::count_running() const {
  return std::count_if(ranks_.begin(), ranks_.end(),
                       [](const RankProcess& rank) { return !rank.exit_status(); });
}

}  // namespace tessera::internal
