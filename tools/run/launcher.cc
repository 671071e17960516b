#include "tessera/tools/run/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tessera/core/launch/random_text.h"
#include "tessera/core/launch/store_directory.h"
#include "tessera/core/launch/thread_binding.h"
#include "tessera/core/launch/worker_environment.h"

namespace tessera::internal {
namespace {

using std::chrono::milliseconds;

/// A process that outlives its worker (the `tee` of a shell, say) may finish by itself this long.
constexpr milliseconds kLinger(1000);
/// The kernel needs about nothing to end a killed process, unless a device holds it.
constexpr milliseconds kGiveUp(10000);
/// How long a terminal that takes nothing may delay the end of a job that is over.
constexpr milliseconds kFlush(20000);
/// `timeout` and some shells send one request twice, as themselves and as a group.
constexpr milliseconds kSameRequest(250);
/// Groups whose processes are not our children end without a signal to us.
constexpr int kGroupPoll_ms = 50;
constexpr size_t kReadLimit_bytes = 64 * 1024;
constexpr size_t kDrainLimit_bytes = 1024 * 1024;

std::string count_of(int count, const char* noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

std::string seconds(int64_t ms) { return absl::StrCat(static_cast<double>(ms) / 1000, " s"); }

}  // namespace

Launcher::Launcher(Job job)
    : job_(std::move(job)),
      stdout_(STDOUT_FILENO),
      own_stderr_(STDERR_FILENO),
      stderr_(are_same_file(STDOUT_FILENO, STDERR_FILENO) ? stdout_ : own_stderr_) {}

int Launcher::run() {
  auto signals = SignalInbox::open();
  if (!signals.ok()) return give_up(signals.status(), kSystemExit);
  // Orphans of the workers come to us and are reaped, also where we are process 1.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const auto directory = create_store_directory();
  if (!directory.ok()) return give_up(directory.status(), kNoStoreExit);
  auto watcher = Watcher::start(*directory);
  if (!watcher.ok()) {
    remove_store_directory(*directory);
    return give_up(watcher.status(), kSystemExit);
  }
  watcher_ = std::move(*watcher);
  auto failures = Failures::create(job_.worker_count);
  if (!failures.ok()) {
    watcher_->finish();
    remove_store_directory(*directory);
    return give_up(failures.status(), kSystemExit);
  }
  failures_ = std::move(*failures);

  const absl::Status started = start_workers(*directory);
  if (!started.ok()) {
    say(std::string(started.message()));
    own_failure_exit_ = absl::IsNotFound(started)           ? kNotFoundExit
                        : absl::IsPermissionDenied(started) ? kCannotRunExit
                                                            : kSystemExit;
    begin_ending();
  }
  loop(*signals);
  watcher_->finish();
  // In case the watcher was killed.
  remove_store_directory(*directory);
  return exit_code();
}

/// Before there are workers: says why, and returns `exit_code`.
int Launcher::give_up(const absl::Status& status, int exit_code) {
  say(std::string(status.message()));
  stderr_.write_some();
  return exit_code;
}

absl::Status Launcher::start_workers(const std::string& store_directory) {
  WorkerPlace place;
  place.world_size = job_.worker_count;
  place.core_count = job_.core_count;
  place.cores = job_.cores;
  place.store = absl::StrCat("file://", store_directory, "/store");
  place.run_id = random_text();
  place.job_token = random_text();
  if (place.job_token.empty())
    return absl::UnavailableError("getrandom gave no secret for the job");
  place.job_page = failures_->page_address();
  const ThreadBinding binding = thread_binding(job_.inherited, 0, job_.worker_count, job_.cores);
  for (const std::string& remark :
       {threads_remark(job_.inherited, job_.core_count, job_.worker_count), binding.remark}) {
    if (!remark.empty()) say(remark);
  }
  for (place.rank = 0; place.rank < job_.worker_count; ++place.rank) {
    auto worker = Worker::start(
        place.rank, {job_.program, worker_environment(job_.inherited, place)}, *watcher_);
    if (!worker.ok()) return worker.status();
    workers_.push_back(std::move(*worker));
  }
  return absl::OkStatus();
}

void Launcher::loop(SignalInbox& signals) {
  while (!abandoned_) {
    forget_empty_groups();
    if (count_running() == 0 && !any_group_alive()) {
      // Whoever left its group may hold a pipe for ever: take what is there, wait for nobody.
      read_all_output();
      if (!flush_until_ && failures_->first() && own_failure_exit_ == 0 && job_.worker_count > 1) {
        say(absl::StrCat("first failure: ", failures_->describe(*failures_->first())));
      }
      if (stdout_.empty() && stderr_.empty()) return;
      if (!flush_until_) flush_until_ = Clock::now() + kFlush;
    }
    check_deadlines();
    wait_for_events(signals);
  }
}

void Launcher::wait_for_events(SignalInbox& signals) {
  std::vector<pollfd> polled = {{signals.poll_fd(), POLLIN, 0}};
  for (Sink* sink : {&stdout_, &own_stderr_}) {
    polled.push_back({sink->empty() ? -1 : sink->poll_fd(), POLLOUT, 0});
  }
  for (auto& worker : workers_) {
    for (auto [stream, sink] : outputs_of(*worker)) {
      // A full sink stops the reading, and with it, in time, the workers that write.
      polled.push_back({sink->full() ? -1 : stream->pipe.get(), POLLIN, 0});
    }
  }
  if (poll(polled.data(), polled.size(), poll_timeout_ms()) < 0) return;

  if (polled[0].revents != 0) take_signals(signals);
  auto pipe = polled.begin() + 3;
  for (auto& worker : workers_) {
    for (auto [stream, sink] : outputs_of(*worker)) {
      if (pipe->revents != 0) {
        stream->read_into(*sink, kReadLimit_bytes);
      } else if (pipe->fd >= 0) {
        stream->lines.show_due(Clock::now(), *sink);
      }
      ++pipe;
    }
  }
  for (const size_t i : {size_t{1}, size_t{2}}) {
    if (polled[i].revents == 0) continue;
    Sink& sink = i == 1 ? stdout_ : own_stderr_;
    if (const int error = sink.write_some(); error != 0) {
      say(absl::StrCat("cannot write to ", i == 1 ? "stdout" : "stderr", ": ", strerror(error),
                       "; what the workers write there is dropped from here on"));
    }
  }
}

void Launcher::take_signals(SignalInbox& signals) {
  bool child_ended = false;
  while (const std::optional<int> signal = signals.next()) {
    if (*signal == SIGCHLD) {
      child_ended = true;
    } else if (*signal == SIGUSR1 || *signal == SIGUSR2) {
      signal_groups(*signal);
    } else {
      take_ending_signal(*signal);
    }
  }
  if (child_ended) reap();
}

void Launcher::take_ending_signal(int signal) {
  const Clock::time_point now = Clock::now();
  if (flush_until_) {
    abandoned_ = true;
  } else if (ending_signal_ == 0) {
    ending_signal_ = signal;
    signalled_ = now;
    say(absl::StrCat("got ", signal_name(signal), "; passing it on to ",
                     count_of(count_running(), "worker"), ", SIGKILL after ",
                     seconds(job_.grace_ms), " or at the next signal"));
    signal_groups(signal);
    signal_groups(SIGCONT);
    if (!kill_at_) kill_at_ = now + milliseconds(job_.grace_ms);
  } else if (now - signalled_ < kSameRequest) {
    return;
  } else if (!kill_sent_) {
    kill_groups(absl::StrCat("got ", signal_name(signal), " after ", signal_name(ending_signal_)));
  } else {
    abandoned_ = true;
  }
}

void Launcher::reap() {
  std::vector<Worker*> ended;
  int status = 0;
  while (const pid_t pid = waitpid(-1, &status, WNOHANG)) {
    if (pid < 0) break;
    for (auto& worker : workers_) {
      if (worker->pid() != pid) continue;
      worker->set_ending(Ending(status));
      ended.push_back(worker.get());
    }
    if (pid == watcher_->pid()) {
      say("the watcher process was killed; should the launcher be killed too, processes that the "
          "workers started would stay");
    }
  }
  if (!ended.empty()) record_endings(ended);
}

void Launcher::record_endings(std::vector<Worker*>& ended) {
  // Of those that ended at one look, a signal is the likelier cause and an error the consequence.
  std::stable_sort(ended.begin(), ended.end(), [](const Worker* a, const Worker* b) {
    return std::pair(a->ending()->signal() == 0, a->rank()) <
           std::pair(b->ending()->signal() == 0, b->rank());
  });
  for (Worker* worker : ended) {
    // What it wrote comes before what is said about it.
    for (auto [stream, sink] : outputs_of(*worker)) {
      stream->read_into(*sink, kDrainLimit_bytes);
      stream->lines.finish(*sink);
    }
    const Ending& ending = *worker->ending();
    const bool is_ending = kill_at_.has_value();
    const bool ended_by_us =
        is_ending && (ending.signal() == SIGKILL || ending.signal() == SIGTERM ||
                      (ending.signal() != 0 && ending.signal() == ending_signal_));
    if (ending.success() || ended_by_us) continue;
    if (const std::string text = failures_->add(*worker); !text.empty()) say(text);
  }
  name_first_failure();
}

/// Says who failed first when that is known, and ends the others when they have had time to say
/// what they waited for.
void Launcher::name_first_failure() {
  // After a signal to us the others are on their way already, at their own pace.
  const bool is_ending = kill_at_.has_value();
  const bool may_wait = !is_ending && count_running() > 0;
  for (const std::string& text : failures_->name_first(processes(), may_wait)) say(text);
  if (!failures_->first() || is_ending) return;
  if (Clock::now() >= *failures_->report_deadline() || !failures_->any_may_report(processes())) {
    begin_ending();
  }
}

void Launcher::begin_ending() {
  if (count_running() > 0) {
    say(absl::StrCat("ending the other ", count_of(count_running(), "worker"),
                     " (SIGTERM, SIGKILL after ", seconds(job_.grace_ms), ")"));
  }
  signal_groups(SIGTERM);
  signal_groups(SIGCONT);
  term_sent_ = true;
  if (!kill_at_) kill_at_ = Clock::now() + milliseconds(job_.grace_ms);
}

void Launcher::check_deadlines() {
  name_first_failure();
  const Clock::time_point now = Clock::now();
  const bool leftovers = count_running() == 0 && any_group_alive();
  if (leftovers && !term_sent_) {
    if (!linger_until_) linger_until_ = now + kLinger;
    if (now >= *linger_until_) {
      for (auto& worker : workers_) {
        if (!worker->group_is_alive()) continue;
        say(absl::StrCat("rank ", worker->rank(), " ended and left processes behind; ending them"));
      }
      begin_ending();
    }
  }
  if (kill_at_ && !kill_sent_ && now >= *kill_at_ && any_group_alive()) {
    kill_groups(absl::StrCat("not ended after ", seconds(job_.grace_ms)));
  }
  if (give_up_at_ && now >= *give_up_at_ && any_group_alive()) {
    for (auto& worker : workers_) {
      if (!worker->group_is_alive()) continue;
      say(absl::StrCat("rank ", worker->rank(), " (process group ", worker->pid(),
                       ") does not end after SIGKILL; not waiting for it any longer"));
    }
    stderr_.write_some();
    abandoned_ = true;
  }
  if (flush_until_ && now >= *flush_until_) abandoned_ = true;
}

void Launcher::forget_empty_groups() {
  for (auto& worker : workers_) {
    if (worker->notice_group_end()) watcher_->forget(worker->pid());
  }
}

void Launcher::read_all_output() {
  for (auto& worker : workers_) {
    for (auto [stream, sink] : outputs_of(*worker)) {
      stream->read_into(*sink, kDrainLimit_bytes);
      stream->lines.finish(*sink);
      stream->pipe.close();
    }
  }
}

Failures::Ranks Launcher::processes() const {
  Failures::Ranks all;
  for (const auto& worker : workers_) all.push_back(worker.get());
  return all;
}

int Launcher::count_running() const {
  return static_cast<int>(std::count_if(workers_.begin(), workers_.end(),
                                        [](const auto& worker) { return !worker->ending(); }));
}

bool Launcher::any_group_alive() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return worker->group_is_alive(); });
}

void Launcher::signal_groups(int signal) {
  for (auto& worker : workers_) worker->signal_group(signal);
}

void Launcher::kill_groups(const std::string& why) {
  for (auto& worker : workers_) {
    if (!worker->group_is_alive()) continue;
    say(absl::StrCat("rank ", worker->rank(), " (pid ", worker->pid(), "): ", why,
                     "; sending SIGKILL"));
  }
  signal_groups(SIGKILL);
  kill_sent_ = true;
  give_up_at_ = Clock::now() + kGiveUp;
}

int Launcher::poll_timeout_ms() {
  Deadline next = flush_until_;
  const auto consider = [&next](const Deadline& deadline) {
    if (deadline && (!next || *deadline < *next)) next = deadline;
  };
  // A deadline that has nothing left to do must not turn the loop into a spin.
  if (any_group_alive()) {
    if (!term_sent_) consider(linger_until_);
    if (!kill_at_) consider(failures_->report_deadline());
    consider(kill_sent_ ? give_up_at_ : kill_at_);
  }
  for (auto& worker : workers_) {
    for (auto [stream, sink] : outputs_of(*worker)) {
      // As above: where the sink is full, the rest of the line may wait in the pipe.
      if (!sink->full()) consider(stream->lines.due());
    }
  }
  int timeout_ms = -1;
  if (next) {
    const auto left = std::chrono::ceil<milliseconds>(*next - Clock::now()).count();
    timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 1000000));
  }
  if (count_running() == 0 && any_group_alive()) {
    timeout_ms = timeout_ms < 0 ? kGroupPoll_ms : std::min(timeout_ms, kGroupPoll_ms);
  }
  return timeout_ms;
}

void Launcher::say(const std::string& message) {
  for (const absl::string_view line : absl::StrSplit(message, '\n')) {
    stderr_.append(absl::StrCat("tessera-run: ", line, "\n"));
  }
}

/// The streams of a worker, and where each goes.
std::array<Launcher::Output, 2> Launcher::outputs_of(Worker& worker) {
  return {Output(&worker.out(), &stdout_), Output(&worker.err(), &stderr_)};
}

int Launcher::exit_code() const {
  if (own_failure_exit_ != 0) return own_failure_exit_;
  if (failures_->first()) return failures_->exit_code();
  return ending_signal_ != 0 ? 128 + ending_signal_ : 0;
}

}  // namespace tessera::internal
