#include "tessera/checkpoint/files/posix_file_lock.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <string_view>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/process/standard_streams.h"
#include "tessera/core/process/unsupported_call.h"

namespace tessera::internal {
namespace {

/// The descriptors of this process's locks. A child of fork() inherits them, and a lock lasts until
/// every process has closed its descriptor. So that a lock ends when this process ends, the child
/// closes its copies at once.
class LockDescriptors {
 public:
  static LockDescriptors& all() {
    static auto* const descriptors = new LockDescriptors;  // never destroyed
    return *descriptors;
  }
  /// Remembers `fd`, which children of fork() then close. If no place is free, `fd` replaces the
  /// descriptor in the last place, and children keep that one open.
  void add(int fd) {
    const std::lock_guard lock(mutex_);
    *std::find(fds_.begin(), fds_.end() - 1, -1) = fd;
  }
  void remove(int fd) {
    const std::lock_guard lock(mutex_);
    std::replace(fds_.begin(), fds_.end(), fd, -1);
  }

 private:
  // Does not use hold_across_fork(), because that needs LibTorch, and tessera-checkpoint links this
  // file without LibTorch.
  LockDescriptors() {
    fds_.fill(-1);
    ::pthread_atfork([] { all().mutex_.lock(); }, [] { all().mutex_.unlock(); },
                     [] {
                       for (int& fd : all().fds_) {
                         if (fd >= 0) ::close(std::exchange(fd, -1));
                       }
                       all().mutex_.unlock();
                     });
  }

  std::mutex mutex_;
  std::array<int, 65> fds_;  // -1: a free place
};

class PosixFileLock : public FileLock {
 public:
  explicit PosixFileLock(FileDescriptor fd) : fd_(std::move(fd)) {
    LockDescriptors::all().add(fd_.get());
  }
  ~PosixFileLock() override {
    if (::getpid() == owner_) {
      LockDescriptors::all().remove(fd_.get());
    } else {
      (void)fd_.release();  // LockDescriptors has closed it in this child
    }
  }

 private:
  const pid_t owner_ = ::getpid();
  FileDescriptor fd_;  // closing it unlocks
};

/// A lock that is held as long as a file exists.
class HeldFile : public FileLock {
 public:
  explicit HeldFile(std::string path) : path_(std::move(path)) {}
  ~HeldFile() override {
    if (::getpid() == owner_) ::unlink(path_.c_str());
  }

 private:
  const pid_t owner_ = ::getpid();
  const std::string path_;
};

/// Returns the holder's text in the file `fd`, as far as it can be read.
std::string holder_in(int fd) {
  char text[256];
  const ssize_t count = ::pread(fd, text, sizeof(text), 0);
  if (count <= 0) return "another process";
  return printable(std::string_view(text, static_cast<size_t>(count)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileLock>> flock_file(FileDescriptor fd, bool alone,
                                                     const std::string& path) {
  while (::flock(fd.get(), (alone ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0) {
    const int error = errno;
    if (error == EINTR) continue;
    if (error == EWOULDBLOCK) {
      return absl::FailedPreconditionError(
          absl::StrCat("[checkpoint] cannot lock '", path, "': held by ", holder_in(fd.get()),
                       "; wait until that ends, or use another path"));
    }
    const absl::Status status = file_error(error, "lock", path);
    if (error == ENOLCK || is_unsupported(error)) {
      return absl::UnimplementedError(status.message());
    }
    return status;
  }
  return std::make_unique<PosixFileLock>(std::move(fd));
}

absl::Status held_error(const std::string& path) {
  const FileDescriptor fd(
      above_standard_streams(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)));
  return absl::FailedPreconditionError(absl::StrCat(
      "[checkpoint] cannot lock by '", path, "', which is there: held by ", holder_in(fd.get()),
      "; wait until that ends, or use another path. On this file system a lock does not end with "
      "its process: if that is gone, remove the file by hand"));
}

absl::StatusOr<std::unique_ptr<FileLock>> hold_file(FileSystem& files, const std::string& path,
                                                    const std::string& holder) {
  const auto file = files.create(path);
  if (absl::IsAlreadyExists(file.status())) return held_error(path);
  if (!file.ok()) return file.status();
  std::unique_ptr<FileLock> lock = std::make_unique<HeldFile>(path);
  absl::Status status = (*file)->write_all(holder);
  if (status.ok()) status = (*file)->close();
  if (!status.ok()) return status;
  return lock;
}

}  // namespace tessera::internal
