#pragma once

#include <signal.h>

#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace tessera::internal {

/// While it lives, blocks all signals in the calling thread except those that a thread's own
/// instructions cause. Threads started meanwhile inherit the mask.
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

/// Starts a library thread for `purpose`, with signals blocked, because the system may deliver a
/// signal for the process to any thread that does not block it. The program may want the signal
/// elsewhere: it may block SIGTERM in its own threads and take it by sigwait(), or have a handler
/// that must run in one of them. Throws std::runtime_error that names the purpose and the limits if
/// no thread can be started.
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
