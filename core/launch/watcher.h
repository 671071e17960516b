#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include <absl/status/statusor.h>

#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// A small process that outlives the launcher, however that dies. It holds one end of a pipe; when
/// the other end closes it sends SIGKILL to the process groups that it was told of, removes the
/// job's directory and ends. It has a session of its own, ignores every signal that can be ignored
/// and keeps no other descriptor open.
class Watcher {
 public:
  /// Forks it. The calling process may have other threads: what the child does between its start
  /// and its end takes no lock but the C library's, which are free in a child. Errors:
  /// ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Watcher>> start(const std::string& directory);

  pid_t pid() const { return pid_; }

  /// Tells it to end process group `group` when the launcher is gone. A worker calls this for
  /// itself between fork and exec, so that no program ever runs unwatched.
  void add(pid_t group) const;
  /// Tells it that `group` is empty; its number may soon be another's.
  void forget(pid_t group) const;

  /// Lets go of it and waits for it to remove the directory, at most 5 seconds. It may have
  /// been reaped before.
  void finish();

 private:
  Watcher(pid_t pid, FileDescriptor pipe) : pid_(pid), pipe_(std::move(pipe)) {}

  pid_t pid_;
  FileDescriptor pipe_;
};

}  // namespace tessera::internal
