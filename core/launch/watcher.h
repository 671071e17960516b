#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include <absl/status/statusor.h>

#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// A small process that outlives the launcher, however the launcher dies. When the launcher ends,
/// the watcher sends SIGKILL to the registered process groups, removes the job's directory and
/// exits. It has a session of its own, ignores every signal that can be ignored, and keeps only
/// these descriptors open: /dev/null, a pidfd of the launcher, and a socket from which it reads the
/// groups.
class Watcher {
 public:
  /// Forks the watcher. The calling process may have other threads, because the child takes no
  /// locks except the C library's, which are free in a child. Errors: ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Watcher>> start(const std::string& directory);

  pid_t pid() const { return pid_; }

  /// Registers process group `group`, to be killed when the launcher is gone. A rank's process
  /// calls this for itself between fork and exec, so that no program ever runs unwatched.
  void add(pid_t group) const;
  /// Removes `group`, which is empty: its number may soon be reused.
  void forget(pid_t group) const;

  /// Tells the watcher to end, and waits until it has removed the directory and exited: at most 5
  /// seconds, or without a limit on Linux before 5.3. Another thread may already have reaped the
  /// watcher.
  void finish();

 private:
  Watcher(pid_t pid, FileDescriptor socket) : pid_(pid), socket_(std::move(socket)) {}

  pid_t pid_;
  FileDescriptor socket_;
};

}  // namespace tessera::internal
