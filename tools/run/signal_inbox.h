#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// Makes the signals of this process readable from a descriptor that can be polled. One per
/// process, in a process with one thread. Takes SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2
/// (each unless it was ignored when the process started, as under nohup) and SIGCHLD; blocks
/// SIGPIPE.
class SignalInbox {
 public:
  /// Blocks the signals from here on. Errors: Internal with the system's reason.
  static absl::StatusOr<SignalInbox> open();

  /// Returns a descriptor that is readable while a signal is pending.
  int poll_fd() const { return fd_.get(); }
  /// Returns the next signal that came; nullopt if there is none. Does not block.
  std::optional<int> next();

 private:
  SignalInbox() = default;

  FileDescriptor fd_;
};

}  // namespace tessera::internal
