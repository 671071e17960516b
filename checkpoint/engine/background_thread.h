#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "tessera/core/process/fork.h"
#include "tessera/process_group.h"

namespace tessera::internal {

/// A thread that runs functions for its owner thread, one at a time. Only the owner thread may make
/// calls. exit() waits for work under way.
class BackgroundThread {
 public:
  /// Throws c10::Error if no thread can be started.
  BackgroundThread();
  /// Collective, blocking. Returns a thread on every rank of `group`, or null on all ranks if any
  /// rank cannot start one; rank 0 then prints a warning.
  static std::unique_ptr<BackgroundThread> on_all_ranks(ProcessGroup& group);
  /// Waits for work under way. Must not run in a child of fork() (Note [Fork]).
  ~BackgroundThread();
  BackgroundThread(const BackgroundThread&) = delete;
  BackgroundThread& operator=(const BackgroundThread&) = delete;

  /// Starts `work` on the thread. `work` must not throw. Call this only if no other work is under
  /// way.
  void start(std::function<void()> work);
  /// Blocks until no work is under way.
  void wait();

 private:
  struct Living;

  /// State that the owner thread and the background thread share.
  struct Desk {
    std::mutex mutex;
    std::condition_variable changed;
    std::function<void()> work;  // empty: no work under way
    bool is_over = false;

    void serve();
  };

  const Origin origin_;
  std::unique_ptr<Desk> desk_;
  std::thread thread_;
};

}  // namespace tessera::internal
