#pragma once

#include <signal.h>

#include <thread>
#include <utility>

namespace tessera::internal {

/// Blocks, while it lives, all signals of the calling thread but those that a thread's own
/// instructions cause. Threads that are started meanwhile inherit that.
class SignalBlock {
 public:
  SignalBlock();
  ~SignalBlock();
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

 private:
  sigset_t before_;
};

/// A thread of ours. The system gives a signal that is sent to the process to any thread that does
/// not block it. So a program that blocks SIGTERM in its threads and takes it by sigwait(), or
/// whose handler relies on running in one of them, needs all other threads to block it: ours do.
/// Throws std::system_error where no thread can be started.
template <typename Run>
std::thread thread_without_signals(Run run) {
  const SignalBlock block;
  return std::thread(std::move(run));
}

}  // namespace tessera::internal
