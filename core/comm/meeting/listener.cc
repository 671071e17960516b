#include "tessera/core/comm/meeting/listener.h"

#include <sys/socket.h>
#include <unistd.h>

#include "tessera/core/process/standard_streams.h"

namespace tessera::internal {
namespace {

/// Returns the process and the user at the other end of `socket`; pid 0 and no valid user id if it
/// is not a Unix socket.
ucred peer_of(int socket) {
  ucred peer{.pid = 0, .uid = static_cast<uid_t>(-1), .gid = static_cast<gid_t>(-1)};
  socklen_t length = sizeof(peer);
  ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length);
  return peer;
}

}  // namespace

int peer_pid(int socket) { return peer_of(socket).pid; }

bool is_of_this_user(int socket) { return peer_of(socket).uid == ::geteuid(); }

FileDescriptor Listener::accept() {
  if (!socket_.is_open()) return FileDescriptor();
  FileDescriptor arrived(above_standard_streams(
      ::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
  if (arrived.is_open() && kind_ == Kind::kUnix && !is_of_this_user(arrived.get())) arrived.close();
  return arrived;
}

void Listener::close() {
  if (!socket_.is_open()) return;
  if (!path_.empty()) ::unlink(path_.c_str());
  // Ends the socket even if a child process has inherited it.
  ::shutdown(socket_.get(), SHUT_RDWR);
  socket_.close();
}

}  // namespace tessera::internal
