#include "tessera/checkpoint/engine/background_thread.h"

#include <pthread.h>
#include <sched.h>

#include <cstdlib>
#include <set>
#include <string>
#include <utility>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/thread_without_signals.h"

namespace tessera::internal {

namespace {

/// Gives the calling thread a scheduling policy under which it does not preempt a running thread
/// when it wakes up. If no core is idle, the calling thread still gets its share of a core. If the
/// system refuses the policy, only speed is lost.
void give_way_when_woken() {
  const sched_param none{};
  (void)::pthread_setschedparam(::pthread_self(), SCHED_BATCH, &none);
}

}  // namespace

// All BackgroundThreads of this process. exit() destroys static objects (LibTorch's, perhaps the
// program's world) while other threads still run. So before that an exit handler of this object
// waits for the work of all BackgroundThreads. It runs in time, because handlers and destructors
// run in reverse order of registration, and all objects that the work uses were made before the
// first BackgroundThread.
struct BackgroundThread::Living {
  Living() {
    hold_across_fork(mutex);
    std::atexit([] {
      const std::lock_guard lock(all().mutex);
      for (BackgroundThread* const thread : all().threads) {
        const bool is_itself = thread->thread_.get_id() == std::this_thread::get_id();
        if (thread->origin_.is_here() && !is_itself) thread->wait();
      }
    });
  }
  static Living& all() {
    // Never destroyed, because a BackgroundThread may end during exit().
    static auto* const living = new Living;
    return *living;
  }

  std::mutex mutex;
  std::set<BackgroundThread*> threads;
};

void BackgroundThread::Desk::serve() {
  give_way_when_woken();
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return is_over || work; });
    if (!work) return;
    lock.unlock();
    work();
    lock.lock();
    work = nullptr;
    changed.notify_all();
  }
}

BackgroundThread::BackgroundThread()
    : desk_(std::make_unique<Desk>()),
      thread_(thread_without_signals("asynchronous checkpoints",
                                     [desk = desk_.get()] { desk->serve(); })) {
  const std::lock_guard lock(Living::all().mutex);
  Living::all().threads.insert(this);
}

std::unique_ptr<BackgroundThread> BackgroundThread::on_all_ranks(ProcessGroup& group) {
  std::unique_ptr<BackgroundThread> thread;
  const std::string problem = thrown_by([&] { thread = std::make_unique<BackgroundThread>(); });
  const std::string refused =
      refusal_text(group.all_gather_bytes(problem, "checkpoint: thread"), "checkpoint");
  if (refused.empty()) return thread;
  if (group.rank() == 0) TORCH_WARN(refused, "; training waits for each checkpoint instead");
  return nullptr;
}

BackgroundThread::~BackgroundThread() {
  {
    const std::lock_guard lock(Living::all().mutex);
    Living::all().threads.erase(this);
  }
  {
    const std::lock_guard lock(desk_->mutex);
    desk_->is_over = true;
  }
  desk_->changed.notify_all();
  thread_.join();
}

void BackgroundThread::start(std::function<void()> work) {
  {
    const std::lock_guard lock(desk_->mutex);
    desk_->work = std::move(work);
  }
  desk_->changed.notify_all();
}

void BackgroundThread::wait() {
  std::unique_lock lock(desk_->mutex);
  desk_->changed.wait(lock, [this] { return !desk_->work; });
}

}  // namespace tessera::internal
