#include "tessera/core/process/thread_without_signals.h"

#include <stdexcept>

#include <absl/strings/str_cat.h>

namespace tessera::internal {

SignalBlock::SignalBlock() {
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) {
    sigdelset(&blocked, own);
  }
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
}

SignalBlock::~SignalBlock() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

void throw_no_thread(std::string_view purpose, const std::system_error& error) {
  const bool is_limit = error.code() == std::errc::resource_unavailable_try_again;
  throw std::runtime_error(absl::StrCat(
      "[process] thread for ", absl::string_view(purpose.data(), purpose.size()), ": got none (",
      error.code().message(), "), expected one; ",
      is_limit ? "raise ulimit -u or the container's pids limit, or leave memory for its stack "
                 "(also by ulimit -v, ulimit -d)"
               : "allow clone() and clone3() in the seccomp profile"));
}

}  // namespace tessera::internal
