#pragma once

#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "tessera/core/comm/meeting/deadline.h"
#include "tessera/core/comm/meeting/listener.h"
#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// A TCP port of a host, where ranks of several hosts meet.
class TcpAddress {
 public:
  /// Local, but asks the resolver, for as long as that takes. Returns the addresses of one process
  /// on the machine that `hosts` name. connect() tries the addresses in this order. Unknown names
  /// are left out. NotFound, with the resolver's reason, if all are unknown.
  static absl::StatusOr<TcpAddress> resolve(const std::vector<std::string>& hosts, int port);

  /// Local. Returns this machine's address on the route to `other`, with a port that the kernel
  /// chooses. Unavailable if there is no route.
  static absl::StatusOr<TcpAddress> own_towards(const TcpAddress& other);

  /// Returns true if no other machine can reach this address.
  bool is_loopback() const;

  /// Local, but waits for the other side until `deadline`. NotFound if no process listens there,
  /// DeadlineExceeded if nothing answers, Unavailable with the system's reason.
  absl::StatusOr<FileDescriptor> connect(Deadline deadline) const;

  /// Local. Listens at this address only. AlreadyExists if another program listens there already,
  /// Unavailable with the system's reason if it is not an address of this machine.
  absl::StatusOr<std::unique_ptr<Listener>> listen() const;

  /// "10.0.0.1:29500".
  std::string text() const;

 private:
  struct Socket {
    const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(bytes.data()); }
    socklen_t length() const { return static_cast<socklen_t>(bytes.size()); }

    int family = 0;
    std::string bytes;  // the sockaddr
  };
  std::vector<Socket> sockets_;
};

/// Local. The address and port at which a listener listens: "10.0.0.1", 29500.
struct TcpEndpoint {
  std::string host;
  int port = 0;
};
TcpEndpoint endpoint_of(const Listener& listener);

/// Local. Returns the addresses at which other machines may reach this one; if there are none,
/// those of the loopback device.
std::vector<std::string> own_hosts();

}  // namespace tessera::internal
