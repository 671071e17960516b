#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera::internal {

/// Ranks that are threads of this process. They have what a thread inherits of the one that makes
/// them, such as the signals that it blocks.
class RankThreads {
 public:
  /// What left a rank's body.
  struct Failure {
    int rank;
    std::exception_ptr error;
  };

  /// Local. Starts `size` threads, each of which calls `body` with its number, once all are there.
  /// Throws std::runtime_error where the system refuses a thread; then no body has begun.
  RankThreads(int size, std::function<void(int rank)> body);
  /// Blocks until all bodies have ended.
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  /// Blocks, but no longer than that. Returns whether all bodies have ended.
  bool wait_for(std::chrono::milliseconds limit);
  /// Blocks until all bodies have ended; returns the failures in the order in which they ended
  /// bodies.
  std::vector<Failure> wait();

 private:
  void run(int rank);
  void let_go(bool may_begin);

  const std::function<void(int)> body_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;  // the gate before the bodies
  bool may_begin_ = false;
  size_t ended_ = 0;
  std::vector<Failure> failures_;
  std::vector<std::thread> threads_;
};

}  // namespace tessera::internal
