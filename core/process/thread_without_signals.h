#pragma once

#include <signal.h>

#include <string_view>
#include <system_error>
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

/// Throws std::runtime_error: no thread for `purpose` could be started, because of `error`.
[[noreturn]] void throw_no_thread(std::string_view purpose, const std::system_error& error);

/// A thread of ours, for `purpose`. The system gives a signal that is sent to the process to any
/// thread that does not block it. So a program that blocks SIGTERM in its threads and takes it by
/// sigwait(), or whose handler relies on running in one of them, needs all other threads to block
/// it: ours do. Throws std::runtime_error that names the purpose and the limits where no thread can
/// be started.
template <typename Run>
std::thread thread_without_signals(std::string_view purpose, Run run) {
  const SignalBlock block;
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    throw_no_thread(purpose, error);
  }
}

}  // namespace tessera::internal
