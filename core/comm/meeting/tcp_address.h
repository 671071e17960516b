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

/// A TCP port of one host, at all addresses of the host that are known. Ranks of several hosts meet
/// there.
class TcpAddress {
 public:
  /// Local, but waits for the resolver. Returns port `port` at all addresses of `hosts`, which are
  /// names of one machine. connect() tries the addresses in this order. Leaves out unknown names.
  /// Returns NotFound, with the resolver's reason, if all are unknown.
  static absl::StatusOr<TcpAddress> resolve(const std::vector<std::string>& hosts, int port);

  /// Local. Returns the address of this machine from which packets to `other` are sent. Its port is
  /// 0, so the kernel chooses a port in listen(). Returns Unavailable if there is no route to
  /// `other`.
  static absl::StatusOr<TcpAddress> own_towards(const TcpAddress& other);

  /// Returns true if no other machine can reach this address.
  bool is_loopback() const;

  /// Local, but waits for the other side until `deadline`. Returns NotFound if no process listens
  /// at the address, DeadlineExceeded if nothing answers, and otherwise Unavailable with the
  /// system's reason.
  absl::StatusOr<FileDescriptor> connect(Deadline deadline) const;

  /// Local. Listens at this address only. Returns AlreadyExists if another program listens there
  /// already, Unavailable with the system's reason if it is not an address of this machine.
  absl::StatusOr<std::unique_ptr<Listener>> listen() const;

  /// Returns the first address and the port, such as "10.0.0.1:29500".
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

/// A numeric address and a port, such as "10.0.0.1" and 29500.
struct TcpEndpoint {
  std::string host;
  int port = 0;
};
/// Local. Returns the address and port at which `listener` listens.
TcpEndpoint endpoint_of(const Listener& listener);

/// Local. Returns the addresses at which other machines may reach this one; if there are none, the
/// addresses of the loopback device.
std::vector<std::string> own_hosts();

}  // namespace tessera::internal
