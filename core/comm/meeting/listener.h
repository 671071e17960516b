#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// Local. Returns the pid of the process at the other end of a Unix socket; 0 for other sockets.
int peer_pid(int socket);

/// Local. Returns true if the process at the other end of a Unix socket is this user's.
bool is_of_this_user(int socket);

/// A listening socket for the members of a job.
class Listener {
 public:
  /// A Unix socket lets in processes of this user only. close() removes its file, `path`.
  enum class Kind : uint8_t { kTcp, kUnix };
  Listener(FileDescriptor socket, Kind kind, std::string path = "")
      : socket_(std::move(socket)), kind_(kind), path_(std::move(path)) {}
  ~Listener() { close(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int fd() const { return socket_.get(); }
  /// Local, never blocks. Returns a waiting connection that is admitted; if there is none, a
  /// FileDescriptor that is not open.
  FileDescriptor accept();
  /// Local. Closes the socket and removes its file.
  void close();

 private:
  FileDescriptor socket_;
  const Kind kind_;
  std::string path_;
};

}  // namespace tessera::internal
