#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// Turns the signals of this process into something to poll. One per process, in a process with
/// one thread. Takes SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 (each unless it was ignored
/// when the process started, as under nohup) and SIGCHLD; SIGPIPE is held off.
class SignalInbox {
 public:
  /// Blocks the signals from here on. Errors: Internal with the system's reason.
  static absl::StatusOr<SignalInbox> open();

  /// Readable when a signal waits.
  int poll_fd() const { return fd_.get(); }
  /// The next signal that came, or nothing. Does not block.
  std::optional<int> next();

 private:
  SignalInbox() = default;

  FileDescriptor fd_;
};

}  // namespace tessera::internal
