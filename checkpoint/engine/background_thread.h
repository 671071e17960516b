#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "tessera/core/process/fork.h"
#include "tessera/process_group.h"

namespace tessera::internal {

/// A thread that works for another one, on one thing at a time. Calls belong to that other thread.
/// exit() waits for the work under way.
class BackgroundThread {
 public:
  /// Throws c10::Error where no thread can be started.
  BackgroundThread();
  /// One on every rank of `group`, or null on all and a warning on rank 0. Collective, blocking.
  static std::unique_ptr<BackgroundThread> on_all_ranks(ProcessGroup& group);
  /// Waits for the work under way; in a child of fork() for nothing (Note [Fork]).
  ~BackgroundThread();
  BackgroundThread(const BackgroundThread&) = delete;
  BackgroundThread& operator=(const BackgroundThread&) = delete;

  /// Hands `work` over, which throws nothing. Nothing may be under way.
  void start(std::function<void()> work);
  /// Returns once nothing is under way.
  void wait();

 private:
  struct Living;

  /// What both threads see.
  struct Desk {
    std::mutex mutex;
    std::condition_variable changed;
    std::function<void()> work;  // empty: none under way
    bool is_over = false;

    void serve();
  };

  const Origin origin_;
  std::unique_ptr<Desk> desk_;
  std::thread thread_;
};

}  // namespace tessera::internal
