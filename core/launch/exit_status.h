#pragma once

#include <string>

namespace tessera::internal {

/// How a process ended, from the status that `waitpid` gave.
class ExitStatus {
 public:
  explicit ExitStatus(int wait_status) : wait_status_(wait_status) {}
  int wait_status() const { return wait_status_; }

  /// Returns true if the process exited with code 0.
  bool success() const;
  /// Returns the signal that killed the process, or 0 if it exited.
  int signal() const;
  /// Returns true if a launcher that is ending its ranks may have killed the process: by SIGTERM,
  /// SIGKILL, or the signal `passed_on` (0: none) that the launcher got.
  bool is_by_launcher(int passed_on) const;
  /// Returns the exit code, or 128 + signal.
  int exit_code() const;
  /// Returns text such as "exited with code 3" or "died of signal 9 (SIGKILL)".
  std::string describe() const;

 private:
  int wait_status_;
};

/// Returns "SIGTERM" for 15, and "signal 40" for a signal without a name.
std::string signal_name(int signal);

}  // namespace tessera::internal
