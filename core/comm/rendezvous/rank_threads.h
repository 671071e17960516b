#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera::internal {

/// Ranks that are threads of this process. The threads block the signals that the calling thread
/// blocks.
class RankThreads {
 public:
  /// An exception that has left a rank's body.
  struct Failure {
    int rank;
    std::exception_ptr error;
    std::chrono::steady_clock::time_point when;
  };

  /// Local. Starts `size` threads. Once all threads run, each calls `body` with its rank. Throws
  /// std::runtime_error if the system refuses a thread; then no body has begun.
  RankThreads(int size, std::function<void(int rank)> body);
  /// Blocks until all bodies have ended.
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  /// Blocks for at most `limit`. Returns true if all bodies have ended.
  bool wait_for(std::chrono::milliseconds limit);
  /// Blocks until all bodies have ended. Returns the failures in the order of Failure::when: the
  /// time at which the exception began to unwind the rank's groups or, if it unwound none, left the
  /// body.
  std::vector<Failure> wait();

 private:
  void run(int rank);
  void let_go(bool may_begin);

  const std::function<void(int)> body_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;    // let_go() was called, so the threads wait no longer
  bool may_begin_ = false;  // true if the threads are to call their bodies
  size_t ended_ = 0;
  std::vector<Failure> failures_;
  std::vector<std::thread> threads_;
};

}  // namespace tessera::internal
