#include "tessera/tools/run/signal_inbox.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tessera/core/process/system_refusal.h"

namespace tessera::internal {

absl::StatusOr<SignalInbox> SignalInbox::open() {
  SignalInbox inbox;
  sigset_t read;
  sigemptyset(&read);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    struct sigaction action;
    // A blocked signal reaches the descriptor even if it is ignored, which would defeat nohup.
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) continue;
    sigaddset(&read, signal);
  }
  sigaddset(&read, SIGCHLD);
  // Our parent may have ignored SIGCHLD, and then no child could be waited for.
  ::signal(SIGCHLD, SIG_DFL);
  sigset_t blocked = read;
  sigaddset(&blocked, SIGPIPE);
  sigaddset(&blocked, SIGXFSZ);  // exceeding the file size limit is handled like a full disk
  if (sigprocmask(SIG_BLOCK, &blocked, nullptr) != 0) {
    return absl::InternalError(absl::StrCat("cannot block signals: ", strerror(errno)));
  }
  inbox.fd_ = FileDescriptor(signalfd(-1, &read, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!inbox.fd_.is_open()) {
    return absl::InternalError(
        absl::StrCat("cannot open a signal descriptor: ", system_refusal("signalfd4", errno)));
  }
  return inbox;
}

std::optional<int> SignalInbox::next() {
  signalfd_siginfo info;
  if (read(fd_.get(), &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) return {};
  return static_cast<int>(info.ssi_signo);
}

}  // namespace tessera::internal
