#include "tessera/core/comm/meeting/abstract_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "tessera/core/process/standard_streams.h"

namespace tessera::internal {
namespace {

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
};

/// A name that begins with a zero byte is none of the file system's.
Address socket_address(const std::string& name) {
  Address address;
  address.name.sun_family = AF_UNIX;
  const size_t bytes = std::min(name.size(), sizeof(address.name.sun_path) - 1);
  std::memcpy(address.name.sun_path + 1, name.data(), bytes);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  return address;
}

}  // namespace

FileDescriptor new_local_socket() {
  return FileDescriptor(
      above_standard_streams(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
}

bool is_of_this_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         peer.uid == ::geteuid();
}

int peer_pid(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  const bool is_unix = ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0;
  return is_unix ? peer.pid : 0;
}

absl::StatusOr<std::unique_ptr<Listener>> listen_at_name(const std::string& name) {
  FileDescriptor socket = new_local_socket();
  const Address address = socket_address(name);
  if (!socket.is_open() ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.name), address.length) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    return absl::UnavailableError(std::strerror(errno));
  }
  return std::make_unique<Listener>(std::move(socket), is_of_this_user);
}

absl::StatusOr<FileDescriptor> connect_to_name(const std::string& name) {
  FileDescriptor socket = new_local_socket();
  const Address address = socket_address(name);
  if (!socket.is_open() || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.name),
                                     address.length) != 0) {
    if (errno == ECONNREFUSED) return absl::NotFoundError("nobody listens any more");
    return absl::UnavailableError(std::strerror(errno));
  }
  if (!is_of_this_user(socket.get())) return absl::NotFoundError("another user listens there");
  return socket;
}

}  // namespace tessera::internal
