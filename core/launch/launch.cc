#include "tessera/launch.h"

#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include "tessera/core/launch/failures.h"
#include "tessera/core/launch/random_text.h"
#include "tessera/core/launch/rank_process.h"
#include "tessera/core/launch/store_directory.h"
#include "tessera/core/launch/watcher.h"
#include "tessera/core/launch/worker_environment.h"
#include "tessera/core/process/available_cores.h"
#include "tessera/core/process/launchers.h"
#include "tessera/core/process/standard_streams.h"
#include "tessera/environment.h"
#include "tessera/errors.h"
#include "tessera/record_errors.h"

namespace tessera {
namespace internal {
namespace {

using LaunchClock = std::chrono::steady_clock;
using LaunchDeadline = std::optional<LaunchClock::time_point>;

constexpr int kMostRanks = 4096;
/// Set in ranks: who has started them.
constexpr const char* kLauncherPid = "TESSERA_LAUNCHER_PID";
/// Some shells send one request twice, as themselves and to a group.
constexpr std::chrono::milliseconds kOneRequest(250);
/// The kernel needs about nothing to end a killed process, unless a device holds it.
constexpr std::chrono::seconds kTimeToDie(10);

constexpr std::array kEndingSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr std::array kPassedSignals = {SIGUSR1, SIGUSR2};

// What a handler may use. Without a descriptor, whose number may be another's when a handler of
// another thread comes to write.
constinit std::array<std::atomic<int>, NSIG> arrivals = {};
sem_t arrival;

void count_arrival(int signal) {
  arrivals[static_cast<size_t>(signal)].fetch_add(1);
  ::sem_post(&arrival);
}

/// While one lives, the signals that concern a launch are counted instead of what they did before.
/// One at a time. Those that are ignored stay ignored, as under nohup.
class CaughtSignals {
 public:
  CaughtSignals() {
    ::sem_init(&arrival, 0, 0);
    sigset_t all;
    sigemptyset(&all);
    for (const int signal : kEndingSignals) take_over(signal, all);
    for (const int signal : kPassedSignals) take_over(signal, all);
    take_over(SIGCHLD, all);
    // Whoever blocks them in all threads would never hear of them.
    ::pthread_sigmask(SIG_UNBLOCK, &all, &mask_before_);
  }
  ~CaughtSignals() {
    for (const auto& [signal, action] : before_) ::sigaction(signal, &action, nullptr);
    ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  }
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;

  /// Blocks until one has come or the deadline has passed, or for less.
  void wait_until(const LaunchDeadline& deadline) const {
    if (!deadline) {
      ::sem_wait(&arrival);
      return;
    }
    const auto since_boot = deadline->time_since_epoch();
    const auto seconds = std::chrono::floor<std::chrono::seconds>(since_boot);
    const timespec when{static_cast<time_t>(seconds.count()),
                        static_cast<long>(std::chrono::nanoseconds(since_boot - seconds).count())};
    ::sem_clockwait(&arrival, CLOCK_MONOTONIC, &when);
  }
  /// Whether it has come since it was last asked.
  bool has_come(int signal) const { return arrivals[static_cast<size_t>(signal)].exchange(0) > 0; }

 private:
  void take_over(int signal, sigset_t& all) {
    struct sigaction before = {};
    ::sigaction(signal, nullptr, &before);
    // Of children that nobody hears of, the kernel does not keep how they ended.
    if (before.sa_handler == SIG_IGN && signal != SIGCHLD) return;
    struct sigaction action = {};
    action.sa_handler = count_arrival;
    action.sa_flags = SA_RESTART | (signal == SIGCHLD ? SA_NOCLDSTOP : 0);
    has_come(signal);
    ::sigaction(signal, &action, nullptr);
    before_.emplace_back(signal, before);
    sigaddset(&all, signal);
  }

  std::vector<std::pair<int, struct sigaction>> before_;
  sigset_t mask_before_;
};

template <typename Value>
Value value_or_throw(absl::StatusOr<Value> value) {
  if (value.ok()) return *std::move(value);
  throw std::runtime_error(absl::StrCat("[launch] ", std::string(value.status().message())));
}

/// The ranks that this process has started. What tessera-run does, without what it does for a
/// terminal: output goes its own way, and nothing is printed.
class LaunchedRanks {
 public:
  explicit LaunchedRanks(std::chrono::milliseconds grace)
      : grace_(grace), directory_(value_or_throw(create_store_directory())) {}
  /// Kills what still runs.
  ~LaunchedRanks() {
    signal_groups(SIGKILL);
    for (RankProcess& rank : ranks_) {
      siginfo_t ended = {};
      if (!rank.ending() && !is_abandoned_) {
        ::waitid(P_PID, static_cast<id_t>(rank.pid()), &ended, WEXITED | WNOWAIT);
      }
      rank.reap_with_group();
    }
    if (watcher_ != nullptr) watcher_->finish();
    remove_store_directory(directory_);
  }
  LaunchedRanks(const LaunchedRanks&) = delete;
  LaunchedRanks& operator=(const LaunchedRanks&) = delete;

  /// Starts the ranks, which end when the calling thread does.
  void start(int count, std::vector<std::string> arguments) {
    watcher_ = value_or_throw(Watcher::start(directory_));
    failures_ = value_or_throw(Failures::create(count));
    WorkerPlace place{.world_size = count,
                      .core_count = available_cores(),
                      .store = absl::StrCat("file://", directory_, "/store"),
                      .job_page = failures_->page_address(),
                      .run_id = random_text(),
                      .job_token = random_text(),
                      .cores = cores_of()};
    if (place.job_token.empty()) {
      throw std::runtime_error("[launch] getrandom gave no secret for the job");
    }
    std::vector<std::string> inherited;
    for (char** entry = environ; *entry != nullptr; ++entry) inherited.emplace_back(*entry);
    // Not the path of this program, which another one may have by now.
    RankProgram program{
        .arguments = std::move(arguments), .environment = {}, .file = "/proc/self/exe"};
    ranks_.reserve(static_cast<size_t>(count));
    for (place.rank = 0; place.rank < count; ++place.rank) {
      program.environment = worker_environment(inherited, place);
      program.environment.push_back(absl::StrCat(kLauncherPid, "=", ::getpid()));
      ranks_.push_back(value_or_throw(
          RankProcess::start(place.rank, program, *watcher_, STDOUT_FILENO, STDERR_FILENO)));
    }
  }

  /// Blocks until all have ended, and returns what launch() does.
  int wait(const CaughtSignals& signals) {
    while (count_running() > 0 && !is_abandoned_) {
      signals.wait_until(next_deadline());
      pass_on(signals);
      reap();
      name_first_failure();
      check_deadlines();
    }
    if (!failures_->first()) return signal_ == 0 ? 0 : 128 + signal_;
    const Failure& first = *failures_->first();
    throw RankError({.rank = first.rank,
                     .exit_code = std::max(1, failures_->exit_code()),
                     .signal = first.ending ? first.ending->signal() : 0},
                    absl::StrCat("[launch] ", failures_->describe(first)));
  }

 private:
  LaunchDeadline next_deadline() const {
    if (kill_at_) return give_up_at_ ? give_up_at_ : kill_at_;
    return failures_->report_deadline();
  }

  void pass_on(const CaughtSignals& signals) {
    for (const int signal : kPassedSignals) {
      if (signals.has_come(signal)) signal_groups(signal);
    }
    const auto now = LaunchClock::now();
    for (const int signal : kEndingSignals) {
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

  void reap() {
    std::vector<const RankProcess*> ended;
    for (RankProcess& rank : ranks_) {
      if (!rank.reap_with_group()) continue;
      watcher_->forget(rank.pid());
      ended.push_back(&rank);
    }
    // Of those that ended at one look, a signal is the likelier cause and an error the consequence.
    std::stable_partition(ended.begin(), ended.end(),
                          [](const RankProcess* rank) { return rank->ending()->signal() != 0; });
    for (const RankProcess* rank : ended) {
      const int by = rank->ending()->signal();
      const bool is_by_us =
          kill_at_ && (by == SIGKILL || by == SIGTERM || (by != 0 && by == signal_));
      if (!rank->ending()->success() && !is_by_us) failures_->add(*rank);
    }
  }

  /// Ends the others once it is known who failed first and they have had time to say whom they
  /// waited for.
  void name_first_failure() {
    Failures::Ranks all;
    for (const RankProcess& rank : ranks_) all.push_back(&rank);
    failures_->name_first(all, /*may_wait=*/!kill_at_ && count_running() > 0);
    if (!failures_->first() || kill_at_) return;
    const bool is_late = LaunchClock::now() >= *failures_->report_deadline();
    if (is_late || !failures_->any_may_report(all)) end_by(SIGTERM);
  }

  void check_deadlines() {
    const auto now = LaunchClock::now();
    if (give_up_at_) {
      is_abandoned_ = now >= *give_up_at_;
    } else if (kill_at_ && now >= *kill_at_) {
      signal_groups(SIGKILL);
      give_up_at_ = now + kTimeToDie;
    }
  }

  void end_by(int signal) {
    signal_groups(signal);
    signal_groups(SIGCONT);
    if (!kill_at_) kill_at_ = LaunchClock::now() + grace_;
  }

  void signal_groups(int signal) {
    for (RankProcess& rank : ranks_) rank.signal_group(signal);
  }

  int64_t count_running() const {
    return std::count_if(ranks_.begin(), ranks_.end(),
                         [](const RankProcess& rank) { return !rank.ending(); });
  }

  const std::chrono::milliseconds grace_;
  const std::string directory_;
  std::unique_ptr<Watcher> watcher_;
  std::unique_ptr<Failures> failures_;
  std::vector<RankProcess> ranks_;
  int signal_ = 0;  // the first that told this process to end
  LaunchClock::time_point signalled_;
  LaunchDeadline kill_at_;     // set once the ranks are being ended
  LaunchDeadline give_up_at_;  // set once they have been killed
  bool is_abandoned_ = false;
};

/// Whether a launcher, or launch() in another process, has made this process a rank.
bool is_rank() {
  const auto launcher = process_environment(kLauncherPid);
  TORCH_CHECK(!launcher || *launcher == absl::StrCat(::getppid()), "[launch] ", kLauncherPid,
              ": got ", launcher.value_or(""), ", expected ", ::getppid(),
              ", the parent of this process: a rank of launch() has started this program, whose "
              "ranks would be ranks of a rank; call launch() in the first program only");
  if (launcher) return true;
  const auto job = read_own_rank();
  TORCH_CHECK(job.ok(), std::string(job.status().message()));
  const std::string& variable = job->rank_variable;
  return variable == "RANK" || variable == "TESSERA_WORLD" || job->world_size > 1;
}

void check_launch(int argc, char** argv, const LaunchOptions& options) {
  TORCH_CHECK(argc >= 1 && argv != nullptr && argv[0] != nullptr, "[launch] argc, argv: got ", argc,
              " arguments, expected main()'s, of which there is one at least; pass them on");
  TORCH_CHECK(options.nproc >= 1 && options.nproc <= kMostRanks, "[launch] nproc: got ",
              options.nproc, ", expected 1 to ", kMostRanks, " ranks; correct it");
  TORCH_CHECK(options.grace.count() >= 0, "[launch] grace: got ", options.grace.count(),
              " ms, expected 0 or more; leave it out for 20 seconds");
}

int run_rank(const char* program, const std::function<int()>& fn) {
  static std::atomic<bool> has_run = false;
  TORCH_CHECK(!has_run.exchange(true), "[launch] rank ", process_environment("RANK").value_or("?"),
              ": got a second call of launch(), expected one, as this process is a rank already; "
              "return from main() what the first one returns");
  const char* const slash = ::strrchr(program, '/');
  ::prctl(PR_SET_NAME, slash == nullptr ? program : slash + 1);  // exec has called it "exe"
  return record_errors(fn);
}

}  // namespace
}  // namespace internal

int launch(int argc, char** argv, const LaunchOptions& options, const std::function<int()>& fn) {
  using namespace internal;
  check_launch(argc, argv, options);
  if (is_rank()) return run_rank(argv[0], fn);
  static std::atomic<bool> is_under_way = false;
  TORCH_CHECK(!is_under_way.exchange(true),
              "[launch] got a call while another one waits for its ranks, expected one at a time "
              "in a process; call one after the other");
  const auto over = c10::make_scope_exit([] { is_under_way = false; });
  open_standard_streams();
  std::fflush(stdout);  // what was printed before the ranks comes before what they print
  const CaughtSignals signals;
  LaunchedRanks ranks(options.grace);
  ranks.start(options.nproc, {argv, argv + argc});
  return ranks.wait(signals);
}

}  // namespace tessera
