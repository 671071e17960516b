#include "tessera/core/comm/meeting/time_limited_store.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <typeinfo>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include "tessera/core/process/error_text.h"
#include "tessera/core/process/thread_without_signals.h"
#include "tessera/time_out.h"

namespace tessera::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kTimeToLetGo = std::chrono::seconds(1);

}  // namespace

/// What the thread and the object share.
struct TimeLimitedStore::Worker {
  struct Call {
    std::function<void(c10d::Store&)> body;
    std::exception_ptr error;
    bool is_done = false;
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Call>> calls;
  bool is_to_end = false;
  bool has_ended = false;
  bool is_stuck = false;

  static void run(const std::shared_ptr<Worker>& self, c10::intrusive_ptr<c10d::Store> store) {
    std::unique_lock lock(self->mutex);
    while (true) {
      self->changed.wait(lock, [&] { return self->is_to_end || !self->calls.empty(); });
      if (self->calls.empty()) break;
      const auto call = self->calls.front();
      self->calls.pop_front();
      lock.unlock();
      try {
        call->body(*store);
      } catch (...) {
        call->error = std::current_exception();
      }
      lock.lock();
      call->is_done = true;
      self->changed.notify_all();
    }
    lock.unlock();
    store.reset();  // may block, too
    lock.lock();
    self->has_ended = true;
    self->changed.notify_all();
  }
};

TimeLimitedStore::TimeLimitedStore(c10::intrusive_ptr<c10d::Store> store)
    : kind_(c10::demangle(typeid(*store).name())), worker_(std::make_shared<Worker>()) {
  thread_without_signals("the calls of a store", [worker = worker_,
                                                  store = std::move(store)]() mutable {
    Worker::run(worker, std::move(store));
  }).detach();
}

TimeLimitedStore::~TimeLimitedStore() {
  if (!origin_.is_here()) {
    static_cast<void>(new std::shared_ptr<Worker>(std::move(worker_)));  // the parent's thread's
    return;
  }
  std::unique_lock lock(worker_->mutex);
  worker_->is_to_end = true;
  worker_->changed.notify_all();
  if (worker_->is_stuck) return;
  worker_->changed.wait_for(lock, kTimeToLetGo, [this] { return worker_->has_ended; });
}

void TimeLimitedStore::fail(const std::exception_ptr& error) const {
  try {
    std::rethrow_exception(error);
  } catch (...) {
    C10_THROW_ERROR(DistStoreError,
                    "the " + kind_ + " that was given failed: " + present_error_text());
  }
}

void TimeLimitedStore::run(std::function<void(c10d::Store&)> body) {
  TORCH_CHECK(origin_.is_here(), "[rendezvous] ", origin_.fork_error("a rank"));
  auto call = std::make_shared<Worker::Call>();
  call->body = std::move(body);
  const auto deadline = Clock::now() + bounded(getTimeout());
  std::unique_lock lock(worker_->mutex);
  if (!worker_->is_stuck) {
    worker_->calls.push_back(call);
    worker_->changed.notify_all();
    if (worker_->changed.wait_until(lock, deadline, [&] { return call->is_done; })) {
      if (call->error) fail(call->error);
      return;
    }
    worker_->is_stuck = true;
  }
  C10_THROW_ERROR(DistStoreError, "the " + kind_ + " that was given has not answered for " +
                                      std::to_string(getTimeout().count()) +
                                      " ms; its calls are left behind");
}

template <typename T>
T TimeLimitedStore::result_of(std::function<T(c10d::Store&)> body) {
  // The call may outlive this frame.
  auto result = std::make_shared<T>();
  run([result, body = std::move(body)](c10d::Store& store) { *result = body(store); });
  return std::move(*result);
}

c10::intrusive_ptr<c10d::Store> TimeLimitedStore::clone() {
  return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(this);
}

void TimeLimitedStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  run([key, value](c10d::Store& store) { store.set(key, value); });
}

std::vector<uint8_t> TimeLimitedStore::compareSet(const std::string& key,
                                                  const std::vector<uint8_t>& expected,
                                                  const std::vector<uint8_t>& desired) {
  return result_of<std::vector<uint8_t>>([key, expected, desired](c10d::Store& store) {
    return store.compareSet(key, expected, desired);
  });
}

std::vector<uint8_t> TimeLimitedStore::get(const std::string& key) {
  return result_of<std::vector<uint8_t>>([key](c10d::Store& store) { return store.get(key); });
}

int64_t TimeLimitedStore::add(const std::string& key, int64_t value) {
  return result_of<int64_t>([key, value](c10d::Store& store) { return store.add(key, value); });
}

bool TimeLimitedStore::deleteKey(const std::string& key) {
  return result_of<bool>([key](c10d::Store& store) { return store.deleteKey(key); });
}

bool TimeLimitedStore::check(const std::vector<std::string>& keys) {
  return result_of<bool>([keys](c10d::Store& store) { return store.check(keys); });
}

int64_t TimeLimitedStore::getNumKeys() {
  return result_of<int64_t>([](c10d::Store& store) { return store.getNumKeys(); });
}

void TimeLimitedStore::wait(const std::vector<std::string>& keys) {
  run([keys](c10d::Store& store) { store.wait(keys); });
}

void TimeLimitedStore::wait(const std::vector<std::string>& keys,
                            const std::chrono::milliseconds& timeout) {
  run([keys, timeout](c10d::Store& store) { store.wait(keys, timeout); });
}

}  // namespace tessera::internal
