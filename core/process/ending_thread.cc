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

// How long the end of the process waits, in all, for threads that hang.
constexpr auto kPatience = std::chrono::seconds(5);

}  // namespace

struct EndingThread::Entry {
  const Origin origin;
  std::function<void()> ask_to_end;
  std::thread thread;
  std::thread::id id;  // a copy, because std::thread::join() resets thread.get_id()
  bool is_over = false;
  bool is_detached = false;
  bool is_joined = false;  // another thread has joined or detached it, or is about to

  bool is_other_thread() const { return origin.is_here() && id != std::this_thread::get_id(); }
};

/// The threads of all EndingThreads that run, or have ended and are to be joined. Never destroyed,
/// because threads may still use it after static objects have been destroyed.
struct EndingThread::All {
  static All& get() {
    static auto* const all = new All;
    return *all;
  }
  All() {
    hold_across_fork(mutex);
    std::atexit([] { get().end_all(); });
  }

  void join(const std::shared_ptr<Entry>& entry) {
    if (!entry->is_other_thread()) return detach(entry);
    std::unique_lock lock(mutex);
    if (!std::exchange(entry->is_joined, true)) {
      lock.unlock();
      entry->thread.join();
      lock.lock();
    }
    changed.wait(lock, [&] { return entry->is_over; });
    entries.remove(entry);
  }

  void detach(const std::shared_ptr<Entry>& entry) {
    const std::lock_guard lock(mutex);
    entry->is_detached = true;
    if (entry->is_over) forget(entry);
  }

  /// Called by the thread when `run` has returned. Removes the entry if nobody will join the
  /// thread. The caller still holds the entry, so the entry and the objects in it are destroyed
  /// after the lock is released.
  void finish(const std::shared_ptr<Entry>& entry) {
    const std::lock_guard lock(mutex);
    entry->is_over = true;
    if (entry->is_detached && !is_ending) forget(entry);
    changed.notify_all();
  }

  void forget(const std::shared_ptr<Entry>& entry) {
    if (!std::exchange(entry->is_joined, true)) entry->thread.detach();
    entries.remove(entry);
  }

  void end_all() {
    std::unique_lock lock(mutex);
    is_ending = true;
    for (const auto& entry : entries) {
      if (entry->is_other_thread() && !entry->is_over && entry->ask_to_end) entry->ask_to_end();
    }
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    // A copy, because owners may join threads, and so remove them from `entries`, whenever the lock
    // is released.
    const auto asked = entries;
    for (const auto& entry : asked) {
      if (!entry->is_other_thread()) continue;
      changed.wait_until(lock, deadline, [&] { return entry->is_over; });
      if (!entry->is_over || std::exchange(entry->is_joined, true)) continue;
      lock.unlock();  // destructors of the thread's thread_local objects may need the lock
      entry->thread.join();
      lock.lock();
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  bool is_ending = false;
  std::list<std::shared_ptr<Entry>> entries;
};

EndingThread::EndingThread(std::string_view purpose, std::function<void()> run,
                           std::function<void()> ask_to_end)
    : entry_(std::make_shared<Entry>()) {
  All& all = All::get();
  entry_->ask_to_end = std::move(ask_to_end);
  const std::lock_guard lock(all.mutex);
  all.entries.push_back(entry_);
  try {
    entry_->thread =
        thread_without_signals(purpose, [&all, entry = entry_, run = std::move(run)]() mutable {
          run();
          run = nullptr;  // destroy its captures before the thread counts as finished
          all.finish(entry);
        });
  } catch (...) {
    all.entries.pop_back();
    throw;
  }
  entry_->id = entry_->thread.get_id();
}

void EndingThread::join() {
  if (const auto entry = std::exchange(entry_, nullptr)) All::get().join(entry);
}

void EndingThread::detach() {
  if (const auto entry = std::exchange(entry_, nullptr)) All::get().detach(entry);
}

}  // namespace tessera::internal
