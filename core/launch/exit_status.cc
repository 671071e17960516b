#include "tessera/core/launch/exit_status.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <absl/strings/str_cat.h>

namespace tessera::internal {

bool ExitStatus::success() const {
  return WIFEXITED(wait_status_) && WEXITSTATUS(wait_status_) == 0;
}

int ExitStatus::signal() const { return WIFSIGNALED(wait_status_) ? WTERMSIG(wait_status_) : 0; }

bool ExitStatus::is_by_launcher(int passed_on) const {
  const int by = signal();
  return by == SIGKILL || by == SIGTERM || (by != 0 && by == passed_on);
}

int ExitStatus::exit_code() const {
  return WIFSIGNALED(wait_status_) ? 128 + WTERMSIG(wait_status_) : WEXITSTATUS(wait_status_);
}

std::string ExitStatus::describe() const {
  if (signal() == 0) return absl::StrCat("exited with code ", exit_code());
  return absl::StrCat("died of signal ", signal(), " (", signal_name(signal()), ")",
                      WCOREDUMP(wait_status_) ? ", core dumped" : "");
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? absl::StrCat("SIG", name) : absl::StrCat("signal ", signal);
}

}  // namespace tessera::internal
