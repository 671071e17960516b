#include "tessera/core/comm/nccl/detached_thread.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

namespace tessera::internal::nccl {
namespace {

// A thread that hangs in NCCL hangs the end of the process no longer than this.
constexpr auto kPatience = std::chrono::seconds(5);

/// All that run. Never destroyed: a thread that did not end in time comes back to it.
class Running {
 public:
  static Running& get() {
    static auto* const running = new Running();
    return *running;
  }

  void start(std::function<void()> run, std::function<void()> ask_to_end) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto place = threads_.emplace(threads_.end());
    place->ask_to_end = std::move(ask_to_end);
    try {
      place->thread = std::thread([this, place, run = std::move(run)]() mutable {
        run();
        run = nullptr;  // what it holds goes before it counts as over
        finish(place);
      });
    } catch (...) {
      threads_.erase(place);
      throw;
    }
  }

 private:
  struct Entry {
    std::thread thread;
    std::function<void()> ask_to_end;
    bool is_over = false;
  };
  using Place = std::list<Entry>::iterator;

  Running() : pid_(::getpid()) {
    std::atexit([] { get().end_all(); });
  }

  void finish(Place place) {
    std::list<Entry> gone;  // outside the lock, as what it holds may start another one
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_ending_) {  // then it is joined
      place->is_over = true;
      changed_.notify_all();
    } else {
      place->thread.detach();
      gone.splice(gone.end(), threads_, place);
    }
  }

  void end_all() {
    if (::getpid() != pid_) return;
    std::unique_lock<std::mutex> lock(mutex_);
    is_ending_ = true;
    for (const Entry& entry : threads_) {
      if (entry.ask_to_end) entry.ask_to_end();
    }
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (Entry& entry : threads_) {
      changed_.wait_until(lock, deadline, [&] { return entry.is_over; });
      if (entry.is_over) {
        entry.thread.join();
      } else {
        entry.thread.detach();
      }
    }
  }

  const pid_t pid_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_ending_ = false;
  std::list<Entry> threads_;
};

}  // namespace

void run_detached(std::function<void()> run, std::function<void()> ask_to_end) {
  Running::get().start(std::move(run), std::move(ask_to_end));
}

}  // namespace tessera::internal::nccl
