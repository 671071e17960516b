#include "tessera/core/comm/meeting/tcp_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/process/standard_streams.h"

namespace tessera::internal {
namespace {

using Clock = std::chrono::steady_clock;

TcpEndpoint numeric(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST] = {};
  char port[NI_MAXSERV] = {};
  ::getnameinfo(address, length, host, sizeof(host), port, sizeof(port),
                NI_NUMERICHOST | NI_NUMERICSERV);
  TcpEndpoint endpoint{.host = host, .port = 0};
  static_cast<void>(absl::SimpleAtoi(port, &endpoint.port));
  return endpoint;
}

FileDescriptor new_socket(int family, int type) {
  return FileDescriptor(
      above_standard_streams(::socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
}

/// Sets socket options, so that the system notices within half a minute that the peer's machine is
/// gone, and sends small messages at once.
void set_up(int socket) {
  const auto set = [socket](int level, int option, int value) {
    ::setsockopt(socket, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
}

/// Waits until `socket` is connected. Returns 0, or the system's error number; ETIMEDOUT at the
/// deadline.
int finish_connecting(int socket, Deadline deadline) {
  pollfd waiting{socket, POLLOUT, 0};
  int ready;
  do {
    ready = ::poll(&waiting, 1, milliseconds_until(deadline));
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof(error);
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

}  // namespace

absl::StatusOr<TcpAddress> TcpAddress::resolve(const std::vector<std::string>& hosts, int port) {
  TcpAddress all;
  std::string reason = "there is no address";
  for (const std::string& host : hosts) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
    if (error != 0) {
      reason = ::gai_strerror(error);
      continue;
    }
    for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
      all.sockets_.push_back(
          {one->ai_family,
           std::string(reinterpret_cast<const char*>(one->ai_addr), one->ai_addrlen)});
    }
    ::freeaddrinfo(list);
  }
  if (!all.sockets_.empty()) return all;
  return absl::NotFoundError(absl::StrCat("the host is unknown (", reason, ")"));
}

absl::StatusOr<TcpAddress> TcpAddress::own_towards(const TcpAddress& other) {
  for (const Socket& far : other.sockets_) {
    // A datagram socket: connecting it sends nothing, but makes the kernel choose a route.
    const FileDescriptor socket = new_socket(far.family, SOCK_DGRAM);
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    if (!socket.is_open() || ::connect(socket.get(), far.address(), far.length()) != 0 ||
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) {
      continue;
    }
    return resolve({numeric(reinterpret_cast<const sockaddr*>(&own), length).host}, 0);
  }
  return absl::UnavailableError(
      absl::StrCat("there is no way from here to ", other.text(), " (", std::strerror(errno), ")"));
}

bool TcpAddress::is_loopback() const {
  return std::all_of(sockets_.begin(), sockets_.end(), [](const Socket& socket) {
    const std::string host = numeric(socket.address(), socket.length()).host;
    return host == "::1" || absl::StartsWith(host, "127.");
  });
}

absl::StatusOr<FileDescriptor> TcpAddress::connect(Deadline deadline) const {
  absl::Status last = absl::UnavailableError("there is no address");
  for (size_t i = 0; i < sockets_.size(); ++i) {
    const Socket& far = sockets_[i];
    // Leaves time for the other addresses, because this one may drop packets without an answer.
    const auto now = Clock::now();
    const auto others = static_cast<int64_t>(sockets_.size() - i);
    const Deadline until = others == 1 ? deadline : now + (deadline - now) / others;
    FileDescriptor socket = new_socket(far.family, SOCK_STREAM);
    int error = socket.is_open() ? 0 : errno;
    if (error == 0 && ::connect(socket.get(), far.address(), far.length()) != 0) {
      error = errno == EINPROGRESS ? finish_connecting(socket.get(), until) : errno;
    }
    if (error == 0) {
      set_up(socket.get());
      return socket;
    }
    if (error == ECONNREFUSED) {
      last = absl::NotFoundError(absl::StrCat("nobody listens at ", text()));
    } else if (error == ETIMEDOUT) {
      last = absl::DeadlineExceededError(absl::StrCat(
          "nothing answers at ", text(), " (a firewall, or an address that is not in use)"));
    } else {
      last = absl::UnavailableError(
          absl::StrCat("connecting to ", text(), " failed (", std::strerror(error), ")"));
    }
  }
  return last;
}

absl::StatusOr<std::unique_ptr<Listener>> TcpAddress::listen() const {
  int reason = 0;
  for (const Socket& own : sockets_) {
    FileDescriptor socket = new_socket(own.family, SOCK_STREAM);
    const int on = 1;
    const int off = 0;
    if (own.family == AF_INET6) {
      ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
    if (socket.is_open() &&
        ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        ::bind(socket.get(), own.address(), own.length()) == 0 &&
        ::listen(socket.get(), SOMAXCONN) == 0) {
      set_up(socket.get());  // connections inherit the options
      return std::make_unique<Listener>(std::move(socket), Listener::Kind::kTcp);
    }
    reason = errno;
    // Does not listen at a later address of the same name: members try the addresses in this order,
    // and would find the other program first.
    if (reason == EADDRINUSE) return absl::AlreadyExistsError("another program uses it");
  }
  return absl::UnavailableError(std::strerror(reason));
}

std::string TcpAddress::text() const {
  const TcpEndpoint endpoint = numeric(sockets_[0].address(), sockets_[0].length());
  return absl::StrCat(endpoint.host, ":", endpoint.port);
}

std::vector<std::string> own_hosts() {
  std::vector<std::string> hosts;
  std::vector<std::string> of_loopback;
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) return hosts;
  for (const ifaddrs* one = interfaces; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    const int family = one->ifa_addr->sa_family;
    const bool is_v6 = family == AF_INET6;
    if (family != AF_INET && !is_v6) continue;
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr);
    if (is_v6 && IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) != 0) continue;
    const socklen_t length = is_v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    auto& list = (one->ifa_flags & IFF_LOOPBACK) != 0 ? of_loopback : hosts;
    list.push_back(numeric(one->ifa_addr, length).host);
  }
  ::freeifaddrs(interfaces);
  return hosts.empty() ? of_loopback : hosts;
}

TcpEndpoint endpoint_of(const Listener& listener) {
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  ::getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&own), &length);
  return numeric(reinterpret_cast<const sockaddr*>(&own), length);
}

}  // namespace tessera::internal
