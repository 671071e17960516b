#pragma once

#include <string>

namespace tessera::internal {

/// How a process ended, from the status that `waitpid` gave.
class ExitStatus {
 public:
  explicit ExitStatus(int wait_status) : wait_status_(wait_status) {}
  int wait_status() const { return wait_status_; }

  /// It returned 0.
  bool success() const;
  /// The signal that killed it, or 0 if it ended by itself.
  int signal() const;
  /// Its exit code, or 128 + signal.
  int exit_code() const;
  /// "exited with code 3" or "died of signal 9 (SIGKILL)".
  std::string describe() const;

 private:
  int wait_status_;
};

/// "SIGTERM" for 15; "signal 40" for one without a name.
std::string signal_name(int signal);

}  // namespace tessera::internal
