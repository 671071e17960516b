#include "tessera/tests/support/host_device.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include <ATen/ops/empty.h>

#include "tessera/core/process/thread_without_signals.h"

namespace tessera::internal::testing {
namespace {

/// Counts recordings: those requested, and those that the stream has reached.
class HostEvent final : public Event {
 public:
  bool is_done() override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->reached >= state_->recorded;
  }
  void synchronize() override {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->changed.wait(lock, [this] { return state_->reached >= state_->recorded; });
  }

  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t recorded = 0;
    uint64_t reached = 0;
  };
  /// Shared with queued work, which may outlive the event, as on CUDA.
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

/// State shared by a stream and its thread; the thread lives until all queued work has run.
struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool closed = false;

  void push(std::function<void()> next) {
    std::lock_guard<std::mutex> lock(mutex);
    work.push_back(std::move(next));
    changed.notify_all();
  }
};

void run_queue(Queue& queue, std::chrono::microseconds longest_delay, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int64_t> delay(0, longest_delay.count());
  while (true) {
    std::function<void()> next;
    {
      std::unique_lock<std::mutex> lock(queue.mutex);
      queue.changed.wait(lock, [&] { return queue.closed || !queue.work.empty(); });
      if (queue.work.empty()) return;
      next = std::move(queue.work.front());
      queue.work.pop_front();
    }
    if (longest_delay.count() > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(delay(random)));
    }
    next();
  }
}

class HostStream final : public Stream {
 public:
  HostStream(std::chrono::microseconds longest_delay, uint64_t seed)
      : handle_{this, [](void* stream, void (*run)(void*), void* argument) {
                  static_cast<HostStream*>(stream)->push([run, argument] { run(argument); });
                }} {
    // Detached, because a destructor must not wait for work that waits for a peer.
    thread_without_signals("a stream of the host", [queue = queue_, longest_delay, seed] {
      run_queue(*queue, longest_delay, seed);
    }).detach();
  }

  ~HostStream() override {
    std::lock_guard<std::mutex> lock(queue_->mutex);
    queue_->closed = true;
    queue_->changed.notify_all();
  }

  void push(std::function<void()> work) { queue_->push(std::move(work)); }

  void record(Event& event) override {
    const auto state = static_cast<HostEvent&>(event).state_;
    uint64_t number = 0;
    {
      std::lock_guard<std::mutex> lock(state->mutex);
      number = ++state->recorded;
    }
    push([state, number] {
      std::lock_guard<std::mutex> lock(state->mutex);
      state->reached = std::max(state->reached, number);
      state->changed.notify_all();
    });
  }

  void wait(Event& event) override {
    const auto state = static_cast<HostEvent&>(event).state_;
    uint64_t number = 0;
    {
      std::lock_guard<std::mutex> lock(state->mutex);
      number = state->recorded;
    }
    push([state, number] {
      std::unique_lock<std::mutex> lock(state->mutex);
      state->changed.wait(lock, [&] { return state->reached >= number; });
    });
  }

  void copy(void* to, const void* from, int64_t bytes) override {
    push([to, from, bytes] { std::memmove(to, from, static_cast<size_t>(bytes)); });
  }

  void copy(const at::Tensor& to, const at::Tensor& from) override {
    push([to, from] {
      std::memmove(to.mutable_data_ptr(), from.const_data_ptr(), static_cast<size_t>(to.nbytes()));
    });
  }

  void* handle() override { return &handle_; }

 private:
  HostStreamHandle handle_;
  const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
};

}  // namespace

HostDevice::HostDevice(Options options)
    : options_(options), current_(make_stream(Priority::kDefault)) {}

std::shared_ptr<Stream> HostDevice::make_stream(Priority /*priority*/) {
  return std::make_shared<HostStream>(options_.longest_delay, options_.seed * 1000003 + ++streams_);
}

std::shared_ptr<Event> HostDevice::make_event() { return std::make_shared<HostEvent>(); }

at::Tensor HostDevice::allocate(int64_t numel, at::ScalarType dtype) {
  return at::empty({numel}, dtype);
}

void HostDevice::run(Stream& stream, std::function<void()> work) {
  static_cast<HostStream&>(stream).push(std::move(work));
}

void HostDevice::synchronize() {
  HostEvent event;
  current_->record(event);
  event.synchronize();
}

}  // namespace tessera::internal::testing
