#include "tessera/tools/run/attempt.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tessera/core/launch/random_text.h"
#include "tessera/core/launch/store_directory.h"
#include "tessera/core/launch/thread_binding.h"

namespace tessera::internal {
namespace {

using std::chrono::milliseconds;

/// How long a process that outlives its worker (such as a shell's `tee`) may take to finish by
/// itself.
constexpr milliseconds kLinger(1000);
/// The kernel ends a killed process almost at once, unless a device holds it.
constexpr milliseconds kGiveUp(10000);
/// `timeout` and some shells send one request twice: to the process and to its group.
constexpr milliseconds kSameRequest(250);
/// No signal reports the end of a group whose processes are not our children, so poll.
constexpr int kGroupPoll_ms = 50;
constexpr size_t kReadLimit_bytes = 64 * 1024;
constexpr size_t kDrainLimit_bytes = 1024 * 1024;

std::string count_of(int count, const char* noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

std::string seconds(int64_t ms) { return absl::StrCat(static_cast<double>(ms) / 1000, " s"); }

}  // namespace

Attempt::Attempt(const Job& job, int number, Console& console, SignalInbox& signals)
    : job_(job), number_(number), console_(console), signals_(signals) {}

AttemptEnd Attempt::run() {
  const auto give_up = [this](const absl::Status& status, int exit_code) {
    say(std::string(status.message()));
    return AttemptEnd{.exit_code = exit_code};
  };
  auto page =
      JobPage::create(job_.line.worker_count, {.restart_count = number_,
                                               .max_restarts = job_.line.max_restarts,
                                               .is_supervised = job_.line.supervise,
                                               .heartbeat_timeout_ms = job_.line.heartbeat_ms});
  if (!page.ok()) return give_up(page.status(), kSystemExit);
  page_ = std::move(*page);
  failures_ = std::make_unique<Failures>(*page_);
  if (job_.line.heartbeat_ms > 0) {
    heartbeats_.emplace(*page_, milliseconds(job_.line.heartbeat_ms), Clock::now());
  }
  const auto directory = create_store_directory();
  if (!directory.ok()) return give_up(directory.status(), kNoStoreExit);
  auto watcher = Watcher::start(*directory);
  if (!watcher.ok()) {
    remove_store_directory(*directory);
    return give_up(watcher.status(), kSystemExit);
  }
  watcher_ = std::move(*watcher);

  const absl::Status started = start_workers(*directory);
  if (!started.ok()) {
    say(std::string(started.message()));
    own_failure_exit_ = absl::IsNotFound(started)           ? kNotFoundExit
                        : absl::IsPermissionDenied(started) ? kCannotRunExit
                        : absl::IsUnavailable(started)      ? kNoStoreExit
                                                            : kSystemExit;
    begin_ending();
  }
  loop();
  const AttemptEnd end = this->end();
  watcher_->finish();
  // The watcher may have been killed before it removed the directory.
  remove_store_directory(*directory);
  return end;
}

absl::Status Attempt::start_workers(const std::string& store_directory) {
  WorkerPlace place;
  place.world_size = job_.line.worker_count;
  place.core_count = job_.core_count;
  place.cores = job_.cores;
  place.store = absl::StrCat("file://", store_directory, "/store");
  place.run_id = job_.run_id;
  place.restart_count = number_;
  place.max_restarts = job_.line.max_restarts;
  place.job_token = random_text();
  if (place.job_token.empty()) return absl::InternalError("getrandom gave no secret for the job");
  place.job_page = page_->address();
  if (number_ == 0 && !job_.line.supervise) {
    const ThreadBinding binding =
        thread_binding(job_.inherited, 0, job_.line.worker_count, job_.cores);
    for (const std::string& remark :
         {threads_remark(job_.inherited, job_.core_count, job_.line.worker_count),
          binding.remark}) {
      if (!remark.empty()) say(remark);
    }
  }
  for (place.rank = 0; place.rank < job_.line.worker_count; ++place.rank) {
    auto program = program_of(place, store_directory);
    if (!program.ok()) return program.status();
    auto worker = Worker::start(place.rank, *std::move(program), *watcher_);
    if (!worker.ok()) return worker.status();
    workers_.push_back(std::move(*worker));
    page_->note_begin(place.rank, workers_.back()->pid());
  }
  return absl::OkStatus();
}

/// Returns how to start the rank at `place`: its environment and log files.
absl::StatusOr<WorkerProgram> Attempt::program_of(WorkerPlace& place,
                                                  const std::string& store_directory) {
  WorkerProgram program;
  program.arguments = job_.line.program;
  std::string files = absl::StrCat(store_directory, "/rank_", place.rank, "_");
  if (!job_.line.log_dir.empty()) {
    const std::string folder =
        absl::StrCat(job_.line.log_dir, "/attempt_", number_, "/", place.rank, "/");
    const absl::Status opened = open_logs(place.rank, folder, program);
    if (opened.ok()) {
      files = folder;
    } else if (number_ == 0) {
      return absl::UnavailableError(
          absl::StrCat(opened.message(), "; name a directory that can be written to"));
    } else if (!std::exchange(lacks_logs_, true)) {
      // A job that has run so far goes on, as with a disk that becomes full later.
      say(absl::StrCat(opened.message(), "; going on without the log files that cannot be made"));
    }
  }
  if (job_.line.supervise) {
    program.name = "the command";
    program.environment = supervised_environment(job_.inherited, place);
    return program;
  }
  program.name = absl::StrCat("rank ", place.rank);
  program.prefix = absl::StrCat("[", place.rank, "] ");
  place.error_file = files + "error.json";
  unlink(place.error_file.c_str());  // left by an earlier job
  error_files_.push_back(place.error_file);
  program.environment = worker_environment(job_.inherited, place);
  return program;
}

/// Opens the log files of rank `rank` in `folder`, which it makes, and sets which of the rank's
/// streams are shown.
absl::Status Attempt::open_logs(int rank, const std::string& folder, WorkerProgram& program) {
  const int redirects = job_.line.redirects[static_cast<size_t>(rank)];
  const int tees = job_.line.tees[static_cast<size_t>(rank)];
  for (const int stream : {0, 1}) {
    program.is_shown[stream] = (redirects & ~tees & (1 << stream)) == 0;
  }
  if (absl::Status made = make_log_folder(folder); !made.ok()) return made;
  for (const int stream : {0, 1}) {
    if (((redirects | tees) & (1 << stream)) == 0) continue;
    auto log = LogFile::open(folder + (stream == 0 ? "stdout.log" : "stderr.log"));
    if (!log.ok()) return log.status();
    program.logs[stream] = *std::move(log);
  }
  return absl::OkStatus();
}

void Attempt::loop() {
  while (!abandoned_) {
    forget_empty_groups();
    if (count_running() == 0 && !any_group_alive()) {
      // A process that left its group may hold a pipe open for ever, so read what is there and do
      // not wait.
      read_all_output();
      return;
    }
    check_deadlines();
    wait_for_events();
  }
}

void Attempt::wait_for_events() {
  const std::array<pollfd, 2> sinks = console_.polled();
  std::vector<pollfd> polled = {{signals_.poll_fd(), POLLIN, 0}, sinks[0], sinks[1]};
  for (auto& worker : workers_) {
    for (auto [stream, sink] : outputs_of(*worker)) {
      // If a sink is full, stop reading; workers that write then block in time.
      polled.push_back({sink->full() ? -1 : stream->pipe.get(), POLLIN, 0});
    }
  }
  if (poll(polled.data(), polled.size(), poll_timeout_ms()) < 0) return;

  if (polled[0].revents != 0) take_signals();
  auto pipe = polled.begin() + 3;
  for (auto& worker : workers_) {
    for (auto [stream, sink] : outputs_of(*worker)) {
      if (pipe->revents != 0) {
        read(*stream, *sink, kReadLimit_bytes);
      } else if (pipe->fd >= 0) {
        stream->lines.show_due(Clock::now(), *sink);
      }
      ++pipe;
    }
  }
  console_.write_ready({polled[1], polled[2]});
}

void Attempt::take_signals() {
  bool child_ended = false;
  while (const std::optional<int> signal = signals_.next()) {
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

void Attempt::take_ending_signal(int signal) {
  const Clock::time_point now = Clock::now();
  if (ending_signal_ == 0) {
    ending_signal_ = signal;
    signalled_ = now;
    say(absl::StrCat("got ", signal_name(signal), "; passing it on to ",
                     count_of(count_running(), "worker"), ", SIGKILL after ",
                     seconds(job_.line.grace_ms), " or at the next signal"));
    signal_groups(signal);
    signal_groups(SIGCONT);
    if (!kill_at_) kill_at_ = now + milliseconds(job_.line.grace_ms);
  } else if (now - signalled_ < kSameRequest) {
    return;
  } else if (!kill_sent_) {
    kill_groups(absl::StrCat("got ", signal_name(signal), " after ", signal_name(ending_signal_)));
  } else {
    abandoned_ = true;
  }
}

void Attempt::reap() {
  std::vector<Worker*> ended;
  int status = 0;
  while (const pid_t pid = waitpid(-1, &status, WNOHANG)) {
    if (pid < 0) break;
    for (auto& worker : workers_) {
      if (worker->pid() != pid) continue;
      worker->set_exit_status(ExitStatus(status));
      page_->note_end(worker->rank(), status);
      ended.push_back(worker.get());
    }
    if (pid == watcher_->pid()) {
      say("the watcher process was killed; should the launcher be killed too, processes that the "
          "workers started would stay");
    }
  }
  if (!ended.empty()) record_endings(ended);
}

void Attempt::record_endings(std::vector<Worker*>& ended) {
  // Among workers that ended since the last look, a signal is the likelier cause and an error the
  // consequence.
  std::stable_sort(ended.begin(), ended.end(), [](const Worker* a, const Worker* b) {
    return std::pair(a->exit_status()->signal() == 0, a->rank()) <
           std::pair(b->exit_status()->signal() == 0, b->rank());
  });
  for (Worker* worker : ended) {
    // Show the worker's output before the messages about it.
    for (auto [stream, sink] : outputs_of(*worker)) {
      read(*stream, *sink, kDrainLimit_bytes);
      stream->lines.finish(*sink);
    }
    const ExitStatus& exit_status = *worker->exit_status();
    const bool is_ending = kill_at_.has_value();
    const bool ended_by_us = is_ending && exit_status.is_by_launcher(ending_signal_);
    if (exit_status.success() || ended_by_us) continue;
    if (const std::string text = failures_->add(*worker); !text.empty()) say(text);
  }
  name_first_failure();
}

/// Names the first failure once it is known, and ends the other ranks when they have had time to
/// report what they waited for.
void Attempt::name_first_failure() {
  // After a signal to the launcher, the other ranks are ending already, at their own pace.
  const bool is_ending = kill_at_.has_value();
  const bool may_wait = !is_ending && count_running() > 0;
  for (const std::string& text : failures_->name_first(processes(), may_wait)) say(text);
  if (!failures_->first() || is_ending) return;
  if (Clock::now() >= *failures_->report_deadline() || !failures_->any_may_report(processes())) {
    begin_ending();
  }
}

/// Treats a rank that has been silent for too long as dead, and ends it.
void Attempt::end_frozen() {
  if (!heartbeats_ || failures_->first() || kill_at_) return;
  const std::optional<Silence> found = heartbeats_->look(Clock::now());
  if (!found) return;
  Worker& worker = *workers_[static_cast<size_t>(found->rank)];
  if (worker.exit_status()) return;
  failures_->add_frozen(worker, found->text);
  if (job_.line.supervise) return;  // its ranks are not in its group, so it has to end them itself
  worker.signal_group(SIGKILL);
}

void Attempt::begin_ending() {
  if (count_running() > 0) {
    say(absl::StrCat("ending the other ", count_of(count_running(), "worker"),
                     " (SIGTERM, SIGKILL after ", seconds(job_.line.grace_ms), ")"));
  }
  signal_groups(SIGTERM);
  signal_groups(SIGCONT);
  term_sent_ = true;
  if (!kill_at_) kill_at_ = Clock::now() + milliseconds(job_.line.grace_ms);
}

void Attempt::check_deadlines() {
  end_frozen();
  name_first_failure();
  const Clock::time_point now = Clock::now();
  const bool leftovers = count_running() == 0 && any_group_alive();
  if (leftovers && !term_sent_) {
    if (!linger_until_) linger_until_ = now + kLinger;
    if (now >= *linger_until_) {
      for (auto& worker : workers_) {
        if (!worker->group_is_alive()) continue;
        say(absl::StrCat(worker->name(), " ended and left processes behind; ending them"));
      }
      begin_ending();
    }
  }
  if (kill_at_ && !kill_sent_ && now >= *kill_at_ && any_group_alive()) {
    kill_groups(absl::StrCat("not ended after ", seconds(job_.line.grace_ms)));
  }
  if (give_up_at_ && now >= *give_up_at_ && any_group_alive()) {
    for (auto& worker : workers_) {
      if (!worker->group_is_alive()) continue;
      say(absl::StrCat(worker->name(), " (process group ", worker->pid(),
                       ") does not end after SIGKILL; not waiting for it any longer"));
    }
    abandoned_ = true;
  }
}

void Attempt::forget_empty_groups() {
  for (auto& worker : workers_) {
    if (worker->notice_group_end()) watcher_->forget(worker->pid());
  }
}

void Attempt::read(WorkerStream& stream, Sink& sink, size_t limit_bytes) {
  stream.read_into(sink, limit_bytes);
  if (const std::string problem = stream.log.take_problem(); !problem.empty()) say(problem);
}

void Attempt::read_all_output() {
  for (auto& worker : workers_) {
    for (auto [stream, sink] : outputs_of(*worker)) {
      read(*stream, *sink, kDrainLimit_bytes);
      stream->lines.finish(*sink);
      stream->pipe.close();
    }
  }
}

Failures::Ranks Attempt::processes() const {
  Failures::Ranks all;
  for (const auto& worker : workers_) all.push_back(worker.get());
  return all;
}

int Attempt::count_running() const {
  return static_cast<int>(std::count_if(workers_.begin(), workers_.end(),
                                        [](const auto& worker) { return !worker->exit_status(); }));
}

bool Attempt::any_group_alive() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return worker->group_is_alive(); });
}

void Attempt::signal_groups(int signal) {
  for (auto& worker : workers_) worker->signal_group(signal);
}

void Attempt::kill_groups(const std::string& why) {
  for (auto& worker : workers_) {
    if (!worker->group_is_alive()) continue;
    say(absl::StrCat(worker->name(), " (pid ", worker->pid(), "): ", why, "; sending SIGKILL"));
  }
  signal_groups(SIGKILL);
  kill_sent_ = true;
  give_up_at_ = Clock::now() + kGiveUp;
}

int Attempt::poll_timeout_ms() {
  Deadline next;
  const auto consider = [&next](const Deadline& deadline) {
    if (deadline && (!next || *deadline < *next)) next = deadline;
  };
  // A deadline that has passed and has nothing left to do must not make the loop spin.
  if (any_group_alive()) {
    if (!term_sent_) consider(linger_until_);
    if (!kill_at_) consider(failures_->report_deadline());
    if (heartbeats_ && !failures_->first() && !kill_at_) consider(heartbeats_->next_look());
    consider(kill_sent_ ? give_up_at_ : kill_at_);
  }
  for (auto& worker : workers_) {
    for (auto [stream, sink] : outputs_of(*worker)) {
      // While the sink is full, nothing is read or shown, so a due line must not wake the loop.
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

/// Returns the streams of a worker, each with its sink.
std::array<Attempt::Output, 2> Attempt::outputs_of(Worker& worker) {
  return {Output(&worker.out(), &console_.out()), Output(&worker.err(), &console_.err())};
}

/// Returns the result of the attempt. Repeats the first failure after all messages about the
/// others.
AttemptEnd Attempt::end() {
  if (own_failure_exit_ != 0) return {.exit_code = own_failure_exit_};
  const std::optional<RankFailure>& first = failures_->first();
  if (!first) return {.exit_code = ending_signal_ != 0 ? 128 + ending_signal_ : 0};
  AttemptEnd end{.exit_code = failures_->exit_code(),
                 .is_failure = ending_signal_ == 0 && !abandoned_,
                 .cause = failures_->describe(*first),
                 .step = first->step,
                 .has_trained = first->has_trained,
                 .saved_step = page_->saved_step()};
  if (job_.line.worker_count > 1) say(absl::StrCat("first failure: ", end.cause));
  const auto rank = static_cast<size_t>(first->rank);
  if (rank >= error_files_.size()) return end;
  if (const std::string text = failures_->left_in(error_files_[rank]); !text.empty()) {
    say(absl::StrCat(first->name, " left this in its error file: ", text));
    absl::StrAppend(&end.cause, ": ", text);
  }
  return end;
}

}  // namespace tessera::internal
