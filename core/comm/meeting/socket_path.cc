#include "tessera/core/comm/meeting/socket_path.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "tessera/core/comm/meeting/abstract_socket.h"
#include "tessera/core/comm/meeting/credentials.h"
#include "tessera/core/process/machine.h"
#include "tessera/core/process/process_status.h"
#include "tessera/core/process/standard_streams.h"
#include "tessera/core/process/system_refusal.h"
#include "tessera/core/process/unsupported_call.h"

namespace tessera::internal {
namespace {

constexpr size_t kMaxSocketName = 80;  // "/proc/self/fd/1234567890/" goes before it, in 107 bytes
constexpr int kMaxWaiting = 4096;

std::string short_name(const std::string& name) {
  if (name.size() <= kMaxSocketName) return name;
  const std::string hash = absl::StrCat(absl::Hex(XXH3_64bits(name.data(), name.size())));
  return absl::StrCat(name.substr(0, kMaxSocketName - 1 - hash.size()), ".", hash);
}

absl::Status system_error(const std::string& path, const char* what) {
  return absl::FailedPreconditionError(absl::StrCat(
      "got ", path, ", where ", what, " failed (", std::strerror(errno),
      "), expected a place for a socket; choose another directory (of tessera-run: TMPDIR)"));
}

absl::Status no_socket() {
  return absl::FailedPreconditionError(
      absl::StrCat("got no Unix socket, expected one; ", system_refusal("socket", errno)));
}

/// Who holds the lock of a directory, as the kernel lists it; 0 if it does not say.
int holder_of_lock(int directory) {
  struct stat status {};
  if (::fstat(directory, &status) != 0) return 0;
  const std::string inode = absl::StrCat(":", status.st_ino);
  std::ifstream locks("/proc/locks");
  std::string line;
  while (std::getline(locks, line)) {
    std::istringstream words(line);
    std::string number, kind, mode, access, file;
    int pid = 0;
    if (words >> number >> kind >> mode >> access >> pid >> file && kind == "FLOCK" &&
        file.ends_with(inode)) {
      return pid;
    }
  }
  return 0;
}

std::string process_text(int pid) {
  if (pid <= 0) return "another process";
  const auto status = process_status(pid);
  const auto rank = rank_of_process(pid);
  return absl::StrCat(
      rank ? absl::StrCat("rank ", *rank, " (pid ", pid, ")") : absl::StrCat("pid ", pid),
      status ? ", which " : "", status ? status->describe() : "");
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

/// flock() of the whole file, alone, where the file system has such locks. Without them two
/// processes that come to a dead one's socket at once may both put theirs in its place; one is then
/// alone, and says so after its time-out.
bool lock_if_there_are_locks(int file) {
  if (::flock(file, LOCK_EX | LOCK_NB) == 0) return true;
  return errno == ENOLCK || is_unsupported(errno);
}

/// A lock that is given up at the end; a dead process's is given up by the kernel.
class DirectoryLock {
 public:
  explicit DirectoryLock(int directory)
      : directory_(directory), is_held_(lock_if_there_are_locks(directory)) {}
  ~DirectoryLock() {
    if (is_held_) ::flock(directory_, LOCK_UN);
  }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  bool is_held() const { return is_held_; }

 private:
  const int directory_;
  const bool is_held_;
};

/// A directory opened anew: a lock belongs to who opened it, and so to this call alone.
FileDescriptor reopen(int directory) {
  return FileDescriptor(
      above_standard_streams(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
}

bool is_old_socket(int directory, const std::string& name) {
  constexpr time_t kOld = 24 * 60 * 60;
  struct stat status {};
  return ::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
         S_ISSOCK(status.st_mode) && ::time(nullptr) - status.st_mtime > kOld;
}

/// Whether no process has that socket. It hears nothing of the question, which is of the wrong type
/// for it.
bool is_dead(int directory, const std::string& name) {
  const FileDescriptor socket(
      above_standard_streams(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)));
  if (!socket.is_open()) return false;
  const sockaddr_un address = address_in(directory, name);
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) !=
             0 &&
         errno == ECONNREFUSED;
}

/// Takes our socket away, unless another one is there by now.
void remove_socket(int directory, const std::string& name, uint64_t inode) {
  const FileDescriptor own = reopen(directory);
  const DirectoryLock lock(own.is_open() ? own.get() : directory);  // no descriptor may be left
  struct stat status {};
  if (::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return;
  if (S_ISSOCK(status.st_mode) && status.st_ino == inode) ::unlinkat(directory, name.c_str(), 0);
}

}  // namespace

void remove_dead_sockets(const std::string& directory) {
  const FileDescriptor own(
      above_standard_streams(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  if (!own.is_open()) return;
  const DirectoryLock lock(own.get());  // whoever puts a new socket in place of a dead one has it
  if (!lock.is_held()) return;
  std::error_code none;
  std::filesystem::directory_iterator entries(directory, none);
  for (; entries != std::filesystem::directory_iterator(); entries.increment(none)) {
    const std::string name = entries->path().filename();
    if (name.size() > kMaxSocketName || !is_old_socket(own.get(), name)) continue;
    if (is_dead(own.get(), name)) ::unlinkat(own.get(), name.c_str(), 0);
  }
}

int peer_pid(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 ? peer.pid : 0;
}

SocketPath::SocketPath(std::string path, std::shared_ptr<const FileDescriptor> directory,
                       std::string name)
    : path_(std::move(path)), directory_(std::move(directory)), name_(std::move(name)) {}

absl::StatusOr<SocketPath> SocketPath::open(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == 0 ? "/" : path.substr(0, slash);
  FileDescriptor opened(
      above_standard_streams(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  if (!opened.is_open()) return system_error(path, "opening its directory");
  return SocketPath(path, std::make_shared<const FileDescriptor>(std::move(opened)),
                    short_name(path.substr(slash + 1)));
}

int SocketPath::lock_holder() const { return holder_of_lock(directory_->get()); }

absl::StatusOr<FileDescriptor> SocketPath::connect() const {
  FileDescriptor socket = new_local_socket();
  if (!socket.is_open()) return no_socket();
  const sockaddr_un address = address_in(directory_->get(), name_);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    // A forked child may still hold the socket of a dead process; nothing answers there.
    const int pid = peer_pid(socket.get());
    const HostProcess peer{.rank = 0, .pid = pid, .machine = machine_id(), .host = {}};
    if (pid > 0 && peer.has_ended()) {
      return absl::NotFoundError(absl::StrCat("who listened at ", path_, " has ended"));
    }
    if (is_of_this_user(socket.get())) return socket;
    return absl::PermissionDeniedError(
        absl::StrCat("got ", path_, ", where another user's process (pid ", peer_pid(socket.get()),
                     ") listens, expected one of this user; choose another directory"));
  }
  if (errno == ENOENT || errno == ECONNREFUSED) {
    return absl::NotFoundError(absl::StrCat("nobody listens at ", path_));
  }
  if (errno == EAGAIN || errno == EINTR) {
    return absl::UnavailableError(absl::StrCat("who listens at ", path_, " lets nobody in"));
  }
  return system_error(path_, "connecting");
}

absl::StatusOr<std::unique_ptr<Listener>> SocketPath::listen() const {
  const FileDescriptor own = reopen(directory_->get());
  if (!own.is_open()) return system_error(path_, "opening its directory");
  const DirectoryLock lock(own.get());
  if (!lock.is_held()) {
    if (errno != EWOULDBLOCK) return system_error(path_, "locking its directory");
    return absl::UnavailableError(absl::StrCat("the lock of the directory of ", path_,
                                               " is held by ",
                                               process_text(holder_of_lock(own.get()))));
  }
  // Asked again under the lock: who was first may listen by now.
  const absl::Status found = connect().status();
  if (!absl::IsNotFound(found)) {
    if (found.ok() || absl::IsUnavailable(found)) return std::unique_ptr<Listener>();
    return found;
  }
  struct stat status {};
  if (::fstatat(own.get(), name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
    if (!S_ISSOCK(status.st_mode)) {
      return absl::FailedPreconditionError(
          absl::StrCat("got ", path_,
                       ", where there is something that is not a socket, expected nothing, or the "
                       "socket of an earlier job; remove it or choose another name"));
    }
    if (::unlinkat(own.get(), name_.c_str(), 0) != 0) {
      return system_error(path_, "removing a dead process's socket");
    }
  }
  FileDescriptor socket = new_local_socket();
  if (!socket.is_open()) return no_socket();
  const sockaddr_un address = address_in(own.get(), name_);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return system_error(path_, "binding a socket");
  }
  if (::fstatat(own.get(), name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
      ::listen(socket.get(), kMaxWaiting) != 0) {
    return system_error(path_, "listening");
  }
  return std::make_unique<Listener>(
      std::move(socket), is_of_this_user,
      [directory = directory_, name = name_, inode = static_cast<uint64_t>(status.st_ino)] {
        remove_socket(directory->get(), name, inode);
      });
}

}  // namespace tessera::internal
