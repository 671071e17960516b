#include "tessera/core/sched/lane.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>

#include "tessera/core/process/ending_thread.h"
#include "tessera/errors.h"
#include "tessera/time_out.h"

namespace tessera::internal {

/// One posted closure. Shared by the lane and the caller's Work, so either may be destroyed first.
class Lane::Task final : public Work {
 public:
  explicit Task(std::function<void()> closure) : closure_(std::move(closure)) {}

  bool is_completed() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }

  void wait() override {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

  bool wait_for(std::chrono::milliseconds longest) override {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, bounded(longest), [this] { return done_; });
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
    closure_ = nullptr;  // releases the tensors before the task counts as done
    std::lock_guard<std::mutex> lock(mutex_);
    error_ = std::move(error);
    done_ = true;
    changed_.notify_all();
  }

  std::function<void()> closure_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
};

/// State that the lane's thread shares with other threads.
struct Lane::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Task>> tasks;
  bool stopping = false;
  bool process_ends = false;
  bool has_ended = false;
  EndingThread thread;

  void run();
  void end_with_process();
};

Lane::Lane(Mode mode, std::function<void()> interrupt)
    : mode_(mode), queue_(std::make_unique<Queue>()) {
  if (mode_ == Mode::kInline) return;
  queue_->thread = EndingThread(
      "communication beside computation", [queue = queue_.get()] { queue->run(); },
      [queue = queue_.get(), interrupt = std::move(interrupt)] {
        queue->end_with_process();
        if (interrupt) interrupt();
      });
}

Lane::~Lane() { close(); }

void Lane::close() {
  {
    std::lock_guard<std::mutex> lock(queue_->mutex);
    queue_->stopping = true;
    queue_->changed.notify_all();
  }
  queue_->thread.join();
  for (auto& task : queue_->tasks) task->discard();
  queue_->tasks.clear();
}

std::shared_ptr<Work> Lane::enqueue(std::function<void()> closure) {
  auto task = std::make_shared<Task>(std::move(closure));
  std::lock_guard<std::mutex> lock(queue_->mutex);
  if (queue_->has_ended) {
    throw CommError({}, "this process ends, and with it the thread that would communicate");
  }
  queue_->tasks.push_back(task);
  queue_->changed.notify_all();
  return task;
}

void Lane::Queue::end_with_process() {
  const std::lock_guard<std::mutex> lock(mutex);
  process_ends = true;
  changed.notify_all();
}

void Lane::Queue::run() {
  std::unique_lock<std::mutex> lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return stopping || process_ends || !tasks.empty(); });
    has_ended = stopping || tasks.empty();
    if (has_ended) return;
    auto task = std::move(tasks.front());
    tasks.pop_front();
    lock.unlock();
    task->run();
    task.reset();
    lock.lock();
  }
}

}  // namespace tessera::internal
