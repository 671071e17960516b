#include "tessera/core/process/thread_without_signals.h"

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

}  // namespace tessera::internal
