#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// Local. Returns the pid of the process at the other end of a Unix socket; 0 for other sockets.
int peer_pid(int socket);

/// Local. Returns true if `socket` is a Unix socket and the process at its other end runs as this
/// user.
bool is_of_this_user(int socket);

/// A listening socket for the members of a job.
class Listener {
 public:
  /// If the kind is kUnix, only processes of this user are let in, and close() removes the socket's
  /// file `path`, unless that is empty.
  enum class Kind : uint8_t { kTcp, kUnix };
  Listener(FileDescriptor socket, Kind kind, std::string path = "")
      : socket_(std::move(socket)), kind_(kind), path_(std::move(path)) {}
  ~Listener() { close(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int fd() const { return socket_.get(); }
  /// Local, never blocks. Accepts the next waiting connection. Returns a FileDescriptor that is not
  /// open if no connection waits or the system refuses (errno says why), if the kind is kUnix and
  /// the connection comes from another user's process, or after close().
  FileDescriptor accept();
  /// Local. Closes the socket and removes its file.
  void close();

 private:
  FileDescriptor socket_;
  const Kind kind_;
  std::string path_;
};

}  // namespace tessera::internal
