#include "tessera/core/sched/lane.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <exception>

#include "tessera/core/errors.h"

namespace tessera {

int64_t current_thread_id() {
  thread_local const int64_t id = static_cast<int64_t>(::syscall(SYS_gettid));
  return id;
}

/// One posted closure. Shared by the lane and the caller's Work, so that either may go first.
class Lane::Task final : public Work {
 public:
  Task(std::function<void()> closure, std::shared_ptr<std::atomic<int64_t>> awaiting_thread)
      : closure_(std::move(closure)), awaiting_thread_(std::move(awaiting_thread)) {}

  bool is_completed() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }

  void wait() override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!done_) {
      awaiting_thread_->store(current_thread_id(), std::memory_order_relaxed);
      changed_.wait(lock, [this] { return done_; });
      awaiting_thread_->store(0, std::memory_order_relaxed);
    }
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

  void run() {
    std::exception_ptr error;
    try {
      closure_();
    } catch (...) {
      error = std::current_exception();
    }
    finish(error);
  }

  void discard() {
    finish(std::make_exception_ptr(
        CommError({}, "the group was destroyed before this collective began")));
  }

 private:
  void finish(std::exception_ptr error) {
    closure_ = nullptr;  // gives the tensors back before anyone sees the task as done
    std::lock_guard<std::mutex> lock(mutex_);
    error_ = std::move(error);
    done_ = true;
    changed_.notify_all();
  }

  std::function<void()> closure_;
  std::shared_ptr<std::atomic<int64_t>> awaiting_thread_;  // outlives the lane with its Works
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
};

Lane::Lane(Mode mode) : mode_(mode) {
  if (mode_ == Mode::kThread) thread_ = std::thread([this] { run(); });
}

Lane::~Lane() { close(); }

void Lane::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  for (auto& task : queue_) task->discard();
  queue_.clear();
}

std::shared_ptr<Work> Lane::enqueue(std::function<void()> closure) {
  auto task = std::make_shared<Task>(std::move(closure), awaiting_thread_);
  std::lock_guard<std::mutex> lock(mutex_);
  queue_.push_back(task);
  changed_.notify_all();
  return task;
}

void Lane::drain() {
  if (mode_ == Mode::kInline) return;
  std::unique_lock<std::mutex> lock(mutex_);
  if (queue_.empty() && !busy_) return;
  awaiting_thread_->store(current_thread_id(), std::memory_order_relaxed);
  changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
  awaiting_thread_->store(0, std::memory_order_relaxed);
}

bool Lane::is_idle() {
  std::lock_guard<std::mutex> lock(mutex_);
  return queue_.empty() && !busy_;
}

bool Lane::is_closing() {
  std::lock_guard<std::mutex> lock(mutex_);
  return stopping_;
}

void Lane::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    auto task = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    task->run();
    task.reset();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace tessera
