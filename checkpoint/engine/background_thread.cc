#include "tessera/checkpoint/engine/background_thread.h"

#include <pthread.h>
#include <sched.h>

#include <utility>

namespace tessera::internal {

namespace {

/// Where there are no idle cores, this thread gets its share of one, and yet never takes it from a
/// thread that is at work the moment that it is woken. A refusal costs speed only.
void give_way_when_woken() {
  const sched_param none{};
  (void)::pthread_setschedparam(::pthread_self(), SCHED_BATCH, &none);
}

}  // namespace

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
    : desk_(std::make_unique<Desk>()), thread_([desk = desk_.get()] { desk->serve(); }) {}

BackgroundThread::~BackgroundThread() {
  if (!origin_.is_here()) {
    // The lock may be held, and the condition waited for, by a thread that is not here.
    (void)desk_.release();
    thread_.detach();
    return;
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
