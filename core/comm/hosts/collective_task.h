#pragma once

#include <coroutine>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "tessera/work.h"

namespace tessera::internal::hosts {

/// One rank's part in a collective of several hosts: a coroutine, which waits with `co_await`
/// without blocking a thread. `co_yield Given()` says that the group's next collective may begin.
/// Put no braced aggregate into the expression of a co_await: GCC 12 destroys it twice.
class CollectiveTask {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;
  using Condition = std::function<bool()>;
  struct Given {};

  /// Waits until the condition is true. Then rethrows the error of `work`, if it has failed.
  class Awaiter {
   public:
    Awaiter(Condition is_so, std::shared_ptr<Work> work)
        : is_so_(std::move(is_so)), work_(std::move(work)) {}
    bool await_ready() const { return is_so_(); }
    void await_suspend(Handle handle) const { handle.promise().awaited = is_so_; }
    void await_resume() const {
      if (work_ != nullptr) work_->wait();
    }

   private:
    const Condition is_so_;
    const std::shared_ptr<Work> work_;
  };

  struct promise_type {
    Condition awaited;
    bool has_given = false;
    std::exception_ptr error;

    CollectiveTask get_return_object() { return CollectiveTask(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    std::suspend_never yield_value(Given /*given*/) noexcept {
      has_given = true;
      return {};
    }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }

    Awaiter await_transform(Condition condition) { return {std::move(condition), nullptr}; }
    /// Waits for `work`, unless it is null.
    Awaiter await_transform(std::shared_ptr<Work> work) {
      return {[work] { return work == nullptr || work->is_completed(); }, work};
    }
  };

  CollectiveTask() = default;
  explicit CollectiveTask(Handle handle) : handle_(handle) {}
  ~CollectiveTask() {
    if (handle_) handle_.destroy();
  }
  CollectiveTask(CollectiveTask&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)) {}
  CollectiveTask& operator=(CollectiveTask&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  /// Resumes the coroutine as far as it can go. Rethrows its error. Returns true if the coroutine
  /// has finished, or if the task is empty.
  bool go_on() {
    if (!handle_) return true;
    promise_type& promise = handle_.promise();
    while (!handle_.done() && (promise.awaited == nullptr || promise.awaited())) {
      promise.awaited = nullptr;
      handle_.resume();
    }
    if (promise.error != nullptr) std::rethrow_exception(std::exchange(promise.error, nullptr));
    return handle_.done();
  }
  bool has_given() const { return !handle_ || handle_.done() || handle_.promise().has_given; }

 private:
  Handle handle_;
};

}  // namespace tessera::internal::hosts
