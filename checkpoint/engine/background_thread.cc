#include "tessera/checkpoint/engine/background_thread.h"

#include <utility>

namespace tessera::internal {

void BackgroundThread::Desk::serve() {
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
