#pragma once

#include <memory>
#include <string>

#include <absl/status/statusor.h>

#include "tessera/core/comm/meeting/listener.h"
#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// A socket path in a directory of this user where the processes of one host meet: the first of
/// them binds a socket there, the others connect. The kernel reports the peers' user; other users
/// are not admitted. A socket at which nobody listens was left by a dead process: a process that
/// finds it replaces it while it holds a lock on the directory, so that only one does.
///
/// Paths may be of any length: the socket is bound through /proc/self/fd, and a file name that is
/// too long is cut and hashed, the same way in all processes.
class SocketPath {
 public:
  /// Local. FailedPrecondition, naming the path and the reason, if the directory cannot be opened.
  static absl::StatusOr<SocketPath> open(const std::string& path);

  /// Local, does not block. A connection to the process that listens there. NotFound if none does,
  /// Unavailable if it does not accept now (with its pid if that is known), PermissionDenied if it
  /// is another user's, FailedPrecondition if no socket can be there.
  absl::StatusOr<FileDescriptor> connect() const;

  /// Local, does not block. Listens there. Null if another process listens there already;
  /// Unavailable while another process holds the lock, naming it; FailedPrecondition as above.
  absl::StatusOr<std::unique_ptr<Listener>> listen() const;

  /// Local. The process that holds the directory's lock; 0 if the kernel does not say.
  int lock_holder() const;

  const std::string& text() const { return path_; }

 private:
  SocketPath(std::string path, std::shared_ptr<const FileDescriptor> directory, std::string name);

  std::string path_;
  std::shared_ptr<const FileDescriptor> directory_;
  std::string name_;  // in the directory
};

/// Local, does not block. Removes from `directory`, which only this user enters, the sockets whose
/// processes have ended without doing so, as those do that are killed while they meet. Spared are
/// those younger than a day: another kernel, of which this one sees no process, may share the
/// directory. Nothing happens while another process holds the directory's lock, or on an error.
void remove_dead_sockets(const std::string& directory);

/// Local. The process at the other end of a Unix socket; 0 if that is unknown.
int peer_pid(int socket);

}  // namespace tessera::internal
