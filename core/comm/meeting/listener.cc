#include "tessera/core/comm/meeting/listener.h"

#include <sys/socket.h>

#include "tessera/core/process/standard_streams.h"

namespace tessera::internal {

FileDescriptor Listener::accept() {
  if (!socket_.is_open()) return FileDescriptor();
  FileDescriptor arrived(above_standard_streams(
      ::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
  if (arrived.is_open() && admits_ && !admits_(arrived.get())) arrived.close();
  return arrived;
}

void Listener::close() {
  if (remove_) std::exchange(remove_, nullptr)();
  // A child of this process may have the socket, too: it ends for all.
  if (socket_.is_open()) ::shutdown(socket_.get(), SHUT_RDWR);
  socket_.close();
}

}  // namespace tessera::internal
