#include "tessera/core/comm/meeting/unix_place.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include <absl/strings/str_cat.h>

#include "tessera/core/process/standard_streams.h"
#include "tessera/core/process/system_refusal.h"

namespace tessera::internal {
namespace {

std::string directory_of(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

/// Returns a short path of the file `path`: it leads through `directory`, a descriptor of that
/// file's directory. A socket address has room for only 107 bytes of path.
std::string short_path(const std::string& path, int directory) {
  return absl::StrCat("/proc/self/fd/", directory, path.substr(path.rfind('/')));
}

/// Makes a non-blocking socket and passes it, with the address of `name`, to `call` (bind or
/// connect). `is_path`: `name` is a path, else an abstract name. If the system refuses the socket
/// or the call, sets errno and returns a descriptor that is not open.
template <typename Call>
FileDescriptor socket_at(std::string name, bool is_path, Call call) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t zeros = is_path ? 0 : 1;  // an abstract name begins with a 0 byte
  FileDescriptor directory;
  if (is_path && name.size() >= sizeof(address.sun_path)) {
    directory = FileDescriptor(above_standard_streams(
        ::open(directory_of(name).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)));
    if (!directory.is_open()) return FileDescriptor();
    name = short_path(name, directory.get());
  }
  if (zeros + name.size() >= sizeof(address.sun_path)) {
    errno = ENAMETOOLONG;
    return FileDescriptor();
  }
  std::memcpy(address.sun_path + zeros, name.data(), name.size());
  const size_t bytes = offsetof(sockaddr_un, sun_path) + 1 + name.size();
  FileDescriptor socket(
      above_standard_streams(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (socket.is_open() && call(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                               static_cast<socklen_t>(bytes)) != 0) {
    return FileDescriptor();
  }
  return socket;
}

}  // namespace

std::string UnixPlace::problem(const std::string& text) const {
  return absl::StrCat(source_, ": got ", this->text(), ", where ", text);
}

absl::Status UnixPlace::system_error(const char* call) const {
  return absl::FailedPreconditionError(problem(
      absl::StrCat(system_refusal(call, errno),
                   "; expected a place for a socket, with a file name of at most 80 bytes; choose "
                   "another path (of tessera-run: TMPDIR)")));
}

absl::StatusOr<FileDescriptor> UnixPlace::connect(Deadline /*deadline*/) {
  FileDescriptor socket = socket_at(name_, is_path(), ::connect);
  if (!socket.is_open()) {
    if (errno == ENOENT || errno == ECONNREFUSED) {
      struct stat status {};
      if (is_path() && ::lstat(name_.c_str(), &status) == 0 && !S_ISSOCK(status.st_mode)) {
        return absl::FailedPreconditionError(
            problem("there is something that is not a socket, expected nothing, or the socket of "
                    "an earlier job; remove it or choose another name"));
      }
      return absl::NotFoundError("nobody listens; is rank 0 on this host?");
    }
    if (errno == EAGAIN || errno == EINTR) {
      return absl::UnavailableError("who listens lets nobody in");
    }
    return system_error("connect");
  }
  if (is_of_this_user(socket.get())) return socket;
  return absl::PermissionDeniedError(problem(
      absl::StrCat("another user's process (pid ", peer_pid(socket.get()),
                   ") listens, expected one of this user; set TESSERA_STORE to another path")));
}

absl::StatusOr<std::unique_ptr<Listener>> UnixPlace::listen(Deadline deadline) {
  // Takes a lock, because another process may be between bind() and listen(), and its socket must
  // not be taken for that of a dead process.
  FileDescriptor directory;
  if (is_path()) {
    directory = FileDescriptor(above_standard_streams(
        ::open(directory_of(name_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
    if (!directory.is_open()) return system_error("open");
    // A file system without locks gives no such protection.
    if (::flock(directory.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      return absl::UnavailableError("another process listens at a path in this directory just now");
    }
  }
  const absl::Status found = connect(deadline).status();
  if (found.ok() || absl::IsUnavailable(found)) {
    return absl::AlreadyExistsError(
        problem("another process listens, expected a path of this job's own; choose another name"));
  }
  if (!absl::IsNotFound(found)) return found;
  if (is_path() && ::unlink(name_.c_str()) != 0 && errno != ENOENT) return system_error("unlink");
  FileDescriptor socket = socket_at(name_, is_path(), ::bind);
  if (!socket.is_open() && errno == EADDRINUSE) {
    return absl::AlreadyExistsError(problem("another process listens"));
  }
  if (!socket.is_open() || ::listen(socket.get(), SOMAXCONN) != 0) return system_error("bind");
  return std::make_unique<Listener>(std::move(socket), Listener::Kind::kUnix,
                                    is_path() ? name_ : "");
}

}  // namespace tessera::internal
