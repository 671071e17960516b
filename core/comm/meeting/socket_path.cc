#include "tessera/core/comm/meeting/socket_path.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/meeting/abstract_socket.h"
#include "tessera/core/process/standard_streams.h"
#include "tessera/core/process/system_refusal.h"

namespace tessera::internal {
namespace {

constexpr size_t kMaxSocketName = 80;  // "/proc/self/fd/1234567890/" goes before it, in 107 bytes

std::string short_name(const std::string& name) {
  if (name.size() <= kMaxSocketName) return name;
  const std::string hash = absl::StrCat(absl::Hex(XXH3_64bits(name.data(), name.size())));
  return absl::StrCat(name.substr(0, kMaxSocketName - 1 - hash.size()), ".", hash);
}

absl::Status no_socket() {
  return absl::FailedPreconditionError(
      absl::StrCat("got no Unix socket, expected one; ", system_refusal("socket", errno)));
}

/// The address of a name in an open directory. Relative to /proc/self/fd, as sockets' addresses
/// take 107 bytes.
sockaddr_un address_in(int directory, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = absl::StrCat("/proc/self/fd/", directory, "/", name);
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

}  // namespace

SocketPath::SocketPath(std::string path, std::string source, Credentials credentials,
                       FileDescriptor directory, std::string name)
    : path_(std::move(path)),
      source_(std::move(source)),
      credentials_(std::move(credentials)),
      directory_(std::make_shared<const FileDescriptor>(std::move(directory))),
      name_(std::move(name)) {}

absl::Status SocketPath::system_error(const char* what) const {
  return absl::FailedPreconditionError(absl::StrCat(
      source_, ": got ", path_, ", where ", what, " failed (", std::strerror(errno),
      "), expected a place for a socket; choose another directory (of tessera-run: TMPDIR)"));
}

absl::StatusOr<std::unique_ptr<SocketPath>> SocketPath::open(const std::string& path,
                                                             const std::string& source,
                                                             Credentials credentials) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == 0 ? "/" : path.substr(0, slash);
  FileDescriptor opened(
      above_standard_streams(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  const bool is_open = opened.is_open();
  std::unique_ptr<SocketPath> place(new SocketPath(
      path, source, std::move(credentials), std::move(opened), short_name(path.substr(slash + 1))));
  if (!is_open) return place->system_error("opening its directory");
  return place;
}

absl::StatusOr<FileDescriptor> SocketPath::connect(Deadline /*deadline*/) {
  FileDescriptor socket = new_local_socket();
  if (!socket.is_open()) return no_socket();
  const sockaddr_un address = address_in(directory_->get(), name_);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    if (is_of_this_user(socket.get())) return socket;
    return absl::PermissionDeniedError(absl::StrCat(
        source_, ": got ", path_, ", where another user's process (pid ", peer_pid(socket.get()),
        ") listens, expected one of this user; choose another directory"));
  }
  if (errno == ENOENT || errno == ECONNREFUSED) {
    return absl::NotFoundError("nobody listens; is rank 0 on this host?");
  }
  if (errno == EAGAIN || errno == EINTR) {
    return absl::UnavailableError("who listens lets nobody in");
  }
  return system_error("connecting");
}

absl::StatusOr<std::unique_ptr<Listener>> SocketPath::listen(Deadline deadline) {
  const int directory = directory_->get();
  struct stat status {};
  const bool is_there = ::fstatat(directory, name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
  if (is_there && !S_ISSOCK(status.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(source_, ": got ", path_,
                     ", where there is something that is not a socket, expected nothing, or the "
                     "socket of an earlier job; remove it or choose another name"));
  }
  const absl::Status found = connect(deadline).status();
  if (found.ok() || absl::IsUnavailable(found)) {
    return absl::AlreadyExistsError(absl::StrCat(source_, ": got ", path_,
                                                 ", where another process listens, expected a path "
                                                 "of this job's own; choose another name"));
  }
  if (!absl::IsNotFound(found)) return found;
  if (is_there && ::unlinkat(directory, name_.c_str(), 0) != 0 && errno != ENOENT) {
    return system_error("removing a dead process's socket");
  }
  FileDescriptor socket = new_local_socket();
  if (!socket.is_open()) return no_socket();
  const sockaddr_un address = address_in(directory, name_);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    return system_error("listening");
  }
  return std::make_unique<Listener>(
      std::move(socket), is_of_this_user,
      [directory = directory_, name = name_] { ::unlinkat(directory->get(), name.c_str(), 0); });
}

}  // namespace tessera::internal
