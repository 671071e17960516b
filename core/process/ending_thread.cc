#include "tessera/core/process/ending_thread.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "tessera/core/process/fork.h"
#include "tessera/core/process/thread_without_signals.h"

namespace tessera::internal {
namespace {

// A thread that hangs hangs the end of the process no longer than this.
constexpr auto kPatience = std::chrono::seconds(5);

}  // namespace

struct EndingThread::Entry {
  const Origin origin;
  std::function<void()> ask_to_end;
  std::thread thread;
  std::thread::id id;  // of the thread, which whoever joins it changes
  bool is_over = false;
  bool is_detached = false;
  bool is_joined = false;  // or is about to be

  bool is_other_thread() const { return origin.is_here() && id != std::this_thread::get_id(); }
};

/// All that run, or wait to be joined. Never destroyed: a thread that did not end in time comes
/// back to it.
class EndingThread::All {
 public:
  static All& get() {
    static auto* const all = new All;
    return *all;
  }

  std::shared_ptr<Entry> start(std::string_view purpose, std::function<void()> run,
                               std::function<void()> ask_to_end) {
    auto entry = std::make_shared<Entry>();
    entry->ask_to_end = std::move(ask_to_end);
    const std::lock_guard lock(mutex_);
    entries_.push_back(entry);
    try {
      entry->thread =
          thread_without_signals(purpose, [this, entry, run = std::move(run)]() mutable {
            run();
            run = nullptr;  // what it holds goes before it counts as over
            finish(entry);
          });
    } catch (...) {
      entries_.pop_back();
      throw;
    }
    entry->id = entry->thread.get_id();
    return entry;
  }

  void join(const std::shared_ptr<Entry>& entry) {
    if (!entry->is_other_thread()) return detach(entry);
    std::unique_lock lock(mutex_);
    if (!std::exchange(entry->is_joined, true)) {
      lock.unlock();
      entry->thread.join();
      lock.lock();
    }
    changed_.wait(lock, [&] { return entry->is_over; });
    entries_.remove(entry);
  }

  void detach(const std::shared_ptr<Entry>& entry) {
    const std::lock_guard lock(mutex_);
    entry->is_detached = true;
    if (entry->is_over) forget(entry);
  }

 private:
  All() {
    hold_across_fork(mutex_);
    std::atexit([] { get().end_all(); });
  }

  /// The entry, and what it holds, goes behind this, without the lock.
  void finish(const std::shared_ptr<Entry>& entry) {
    const std::lock_guard lock(mutex_);
    entry->is_over = true;
    if (entry->is_detached && !is_ending_) forget(entry);
    changed_.notify_all();
  }

  void forget(const std::shared_ptr<Entry>& entry) {
    if (!std::exchange(entry->is_joined, true)) entry->thread.detach();
    entries_.remove(entry);
  }

  void end_all() {
    std::unique_lock lock(mutex_);
    is_ending_ = true;
    for (const auto& entry : entries_) {
      if (entry->is_other_thread() && !entry->is_over && entry->ask_to_end) entry->ask_to_end();
    }
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    const auto asked = entries_;  // owners join some meanwhile
    for (const auto& entry : asked) {
      if (!entry->is_other_thread()) continue;
      changed_.wait_until(lock, deadline, [&] { return entry->is_over; });
      if (!entry->is_over || std::exchange(entry->is_joined, true)) continue;
      lock.unlock();  // its thread-local objects may need it
      entry->thread.join();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_ending_ = false;
  std::list<std::shared_ptr<Entry>> entries_;
};

EndingThread::EndingThread(std::string_view purpose, std::function<void()> run,
                           std::function<void()> ask_to_end)
    : entry_(All::get().start(purpose, std::move(run), std::move(ask_to_end))) {}

void EndingThread::join() {
  if (const auto entry = std::exchange(entry_, nullptr)) All::get().join(entry);
}

void EndingThread::detach() {
  if (const auto entry = std::exchange(entry_, nullptr)) All::get().detach(entry);
}

}  // namespace tessera::internal
