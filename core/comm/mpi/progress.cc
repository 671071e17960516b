#include "tessera/core/comm/mpi/progress.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <ranges>

#include <c10/util/Exception.h>

#include "tessera/core/process/ending_thread.h"
#include "tessera/time_out.h"

namespace tessera::internal::mpi {
namespace {

// How the thread waits while something is under way: it yields its core after each of the first
// kYields polls in a row that find no progress. After each later one it sleeps: for kShortSleep, or
// from the kLongAfter-th on for kLongSleep. It gives up its core because ranks often outnumber
// cores, and the ranks that this one waits for need a core, too.
constexpr int kYields = 100;
constexpr auto kShortSleep = std::chrono::microseconds(50);
constexpr int kLongAfter = 2000;
constexpr auto kLongSleep = std::chrono::milliseconds(1);
// How the thread waits while this rank only serves reads of other ranks: it sleeps for kShortSleep
// after each of the first kClump polls without a request, because requests come in clumps. After
// later polls it sleeps for kRequestSleep, and from the kLongAfter-th on for kLongSleep. A poll
// costs about 12 us of a core that may have other work; a late poll delays a reader.
constexpr int kClump = 40;
constexpr auto kRequestSleep = std::chrono::microseconds(500);
// How long the thread sleeps while nothing is expected.
constexpr auto kIdleSleep = std::chrono::milliseconds(50);
// How long to wait for other ranks: in effect without a limit, as MPI_Finalize does.
constexpr std::chrono::milliseconds kMaxWait = kMaxTimeOut;
// When this rank leaves its worlds after a failure: how long the other ranks may take to leave.
// kLinger is for a failure of the world; kLingerOfGroup is for a failure of one of its groups,
// after which ranks may still have work to do. Both times are longer than kGrace, the time in which
// calls may still succeed.
constexpr auto kLinger = internal::Link::kGrace + std::chrono::seconds(1);
constexpr auto kLingerOfGroup = std::chrono::seconds(3);
// Time for the launcher to read this rank's output. MPICH's launcher drops output that it has not
// read when the rank ends (4 of 14 runs).
constexpr auto kBeforeAbort = std::chrono::milliseconds(100);
// How much later than the others rank 0 finalises MPI. With MPICH 4.0 over UCX and TCP, ranks may
// wait for each other in MPI_Finalize forever; with this delay that was never seen (docs/hosts.md).
constexpr auto kLastOne = std::chrono::milliseconds(200);
// How long MPI_Finalize may take once all ranks are about to call it.
constexpr auto kPatience = std::chrono::seconds(5);

}  // namespace

Progress& Progress::instance() {
  static auto* const progress = new Progress();
  return *progress;
}

bool Progress::post(std::function<void()> job) {
  bool is_first = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (has_ended_) return false;
    is_first = !std::exchange(is_started_, true);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
  if (is_first) {
    EndingThread(
        "the progress of MPI", [this] { loop(); }, [this] { ask_to_end(); })
        .detach();
  }
  return true;
}

bool Progress::run(std::function<void()> job, std::chrono::milliseconds timeout) {
  TORCH_CHECK(origin_.is_here(), "[mpi] process: got ", origin_.fork_error("a process of MPI"),
              ", expected the process that has begun to use MPI; make groups there");
  const auto task = std::make_shared<std::packaged_task<void()>>(std::move(job));
  std::future<void> result = task->get_future();
  if (!post([task] { (*task)(); })) (*task)();
  if (result.wait_for(timeout) != std::future_status::ready) return false;
  result.get();
  return true;
}

void Progress::run_soon(std::function<void()> job) {
  if (std::this_thread::get_id() == thread_.load(std::memory_order_relaxed)) return job();
  post(std::move(job));
}

bool Progress::wake() {
  if (std::this_thread::get_id() == thread_.load(std::memory_order_relaxed)) {
    // This thread is awake, and loop() looks at has_moved_ before it pauses. Setting is_woken_
    // would end the next pause at once, even if nothing is left to do and the application may
    // therefore call MPI.
    has_moved_ = true;
    return true;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (has_ended_) return false;
    is_woken_ = true;
  }
  changed_.notify_one();
  return true;
}

/// Waits until the next poll. `idle_rounds`: how many polls in a row have found no progress. If
/// idle_rounds is 0, and something is under way or other ranks may read, returns at once.
void Progress::pause(int idle_rounds) {
  bool is_busy = false;   // something is under way
  bool is_asked = false;  // other ranks may request parts of windows
  for (const auto& world : worlds_) {
    is_busy = is_busy || world->is_busy();
    is_asked = is_asked || world->is_asked();
  }
  if (idle_rounds == 0 && (is_busy || is_asked)) return;
  if (is_busy && idle_rounds < kYields) {
    ::sched_yield();
    return;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  const auto has_jobs = [this] { return !jobs_.empty() || is_woken_ || process_ends_; };
  if (!is_busy && !is_asked) {
    if (!may_look_ || worlds_.empty()) return changed_.wait(lock, has_jobs);
    changed_.wait_for(lock, kIdleSleep, has_jobs);
    return;
  }
  if (idle_rounds < (is_busy ? kLongAfter : kClump)) {
    changed_.wait_for(lock, kShortSleep, has_jobs);
  } else if (is_asked && idle_rounds < kLongAfter) {
    changed_.wait_for(lock, kRequestSleep, has_jobs);
  } else {
    changed_.wait_for(lock, kLongSleep, has_jobs);
  }
}

/// Returns true if the thread may poll. If it gives way to the application, it may poll only while
/// something is under way, other ranks may read, or this rank is leaving a group. Otherwise the
/// call for which the thread was woken may have finished already, and the application may be
/// calling MPI.
bool Progress::has_to_look() const {
  return !gives_way() || std::any_of(worlds_.begin(), worlds_.end(), [](const auto& world) {
    return world->is_busy() || world->is_asked() || world->is_closing();
  });
}

bool Progress::look_at_worlds() {
  const auto now = Clock::now();
  bool moved = false;
  for (const auto& world : worlds_) moved = world->advance(now) || moved;
  std::erase_if(worlds_, [](const auto& world) { return world->is_retired(); });
  return moved;
}

void Progress::loop() {
  ::pthread_setname_np(::pthread_self(), "tessera-mpi");  // as ps -L and debuggers show it
  thread_ = std::this_thread::get_id();
  for (int idle_rounds = 0;; ++idle_rounds) {
    std::deque<std::function<void()>> jobs;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      jobs.swap(jobs_);
      const bool is_woken = std::exchange(is_woken_, false);
      if (is_woken || !jobs.empty()) idle_rounds = 0;
    }
    for (const auto& job : jobs) job();
    const bool has_moved = has_to_look() && look_at_worlds();
    if (std::exchange(has_moved_, false) || has_moved) idle_rounds = 0;
    if (has_to_end()) break;
    pause(idle_rounds);
  }
  thread_ = std::thread::id();  // the system may give the id to another thread
}

void Progress::ask_to_end() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    process_ends_ = true;
  }
  changed_.notify_one();
}

/// Returns false until the process ends. Then ends all calls, so that no thread waits for a call,
/// and returns true once no job is left.
bool Progress::has_to_end() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!process_ends_) return false;
  }
  for (const auto& world : worlds_) world->end_calls(kProcessEnds);
  const std::lock_guard<std::mutex> lock(mutex_);
  has_ended_ = jobs_.empty();
  return has_ended_;
}

void Progress::own(const Calls& calls) {
  owned_ = &calls;
  may_look_ = true;
  std::atexit([] { instance().end(); });
}

void Progress::leave_to_application(const Calls& calls) {
  if (owned_ != nullptr) return;  // an earlier world has initialised this MPI
  may_look_ = calls.level() == Calls::kMultiple;
  if (std::exchange(hears_finalize_, true)) return;
  calls.before_finalize([] {
    Progress& progress = instance();
    if (progress.origin_.is_here()) progress.leave(kFinalised);
  });
}

/// Returns true once all worlds have retired. Ends all ranks if a world has failed and its ranks do
/// not leave in time. `failed`: the time at which a call of this function first saw a failure; this
/// function sets it.
bool Progress::is_over(std::optional<Clock::time_point>& failed) {
  for (const auto& world : worlds_) {
    const std::string cause = world->any_failure();
    if (cause.empty()) continue;
    has_failed_ = has_failed_ || world->has_failed();
    const auto linger = world->has_failed() ? kLinger : kLingerOfGroup;
    const auto now = Clock::now();
    if (!failed.has_value()) failed = now;
    if (now - *failed < linger) continue;
    std::fprintf(stderr,
                 "[mpi] this rank ends, and other ranks have not left the group within %d s after "
                 "it had failed: %s. MPI_Abort ends them.\n",
                 static_cast<int>(linger.count()), cause.c_str());
    std::this_thread::sleep_for(kBeforeAbort);
    world->abort_all();
  }
  return worlds_.empty();
}

/// Leaves all worlds and waits until the other ranks have left them.
void Progress::let_go(const char* cause) {
  std::optional<Clock::time_point> failed;
  const auto all = worlds_;
  for (const auto& world : all) {
    world->guard([&] {
      world->make_no_calls(cause);
      world->end();
    });
  }
  while (!is_over(failed)) {
    // Sleeps only briefly, because other ranks may still read this rank's windows.
    if (!look_at_worlds()) std::this_thread::sleep_for(kRequestSleep);
  }
  for (const auto& world : all) world->set_failure(cause);
}

void Progress::leave(const char* cause) {
  run([this, cause] { let_go(cause); }, kMaxWait);
}

/// For each world, the newest first: makes this rank leave the groups that the world's ranks on
/// this host form among themselves. Runs on the calling thread, because the progress thread must
/// meanwhile advance the calls that HostRanks::leave() waits for.
void Progress::leave_hosts() {
  std::vector<std::shared_ptr<HostRanks>> hosts;
  run(
      [&] {
        for (const auto& world : worlds_) hosts.push_back(world->host());
      },
      kMaxWait);
  for (const auto& host : hosts | std::views::reverse) {
    if (host != nullptr) host->leave();
  }
}

/// Waits until all ranks have called this, by duplicating MPI_COMM_WORLD, which all ranks must do.
/// Rank 0 then waits for kLastOne, so that it calls MPI_Finalize last.
void Progress::await_ends() {
  Handle copy = 0;
  Handle request = 0;
  if (owned_->duplicate(owned_->world(), &copy, &request) != 0) return;
  int is_over = 0;
  int source = 0;
  while (owned_->test(&request, &is_over, &source) == 0 && is_over == 0) {
    std::this_thread::sleep_for(kLongSleep);
  }
  int rank = 0;
  if (owned_->rank(owned_->world(), &rank) == 0 && rank == 0) {
    std::this_thread::sleep_for(kLastOne);
  }
}

/// Waits at most for `others` until all ranks are about to end. Then calls MPI_Finalize, and waits
/// at most for `own` until it returns. Returns true if both times were long enough.
bool Progress::finalizes(std::chrono::milliseconds others, std::chrono::milliseconds own) {
  if (!run([this] { await_ends(); }, others)) return false;
  return run([this] { owned_->finalize(); }, own);
}

void Progress::end() {
  if (!origin_.is_here()) return;
  leave_hosts();
  leave(kFinalised);
  if (has_failed_) {
    // The waits are short here: MPI_Finalize waits for the other ranks, and for the launcher's
    // daemons, whose network may be gone.
    if (finalizes(kLinger, kLinger)) return;
    std::fprintf(stderr,
                 "[mpi] this rank ends after a failure, without MPI_Finalize, which waits\n");
    std::fflush(nullptr);
    std::_Exit(1);
  }
  if (finalizes(kMaxWait, kPatience)) return;
  std::fprintf(stderr,
               "[mpi] this process ends, and MPI_Finalize has not returned within %d s: nothing is "
               "lost, but the launcher may call it a failure. MPICH 4.0 over UCX and TCP is known "
               "for it; use another MPICH, or Open MPI\n",
               static_cast<int>(kPatience.count()));
}

}  // namespace tessera::internal::mpi
