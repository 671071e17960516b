#include "tessera/checkpoint/files/posix_file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <mutex>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/process/file_descriptor.h"
#include "tessera/core/process/standard_streams.h"

namespace tessera::internal {
namespace {

/// open(2), above the standard streams and closed in what the process executes.
FileDescriptor open_descriptor(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, S_IRUSR | S_IWUSR);
  return FileDescriptor(above_standard_streams(fd));
}

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(FileDescriptor fd, std::string path)
      : fd_(std::move(fd)), path_(std::move(path)) {}

  absl::Status write_all(std::string_view bytes) override {
    absl::Status status = internal::write_all(fd_.get(), bytes, path_);
    written_ += static_cast<int64_t>(bytes.size());
    if (status.ok() && written_ - begun_ >= kAheadBytes) begin_writeback();
    return status;
  }
  absl::Status sync() override {
    if (::fsync(fd_.get()) != 0) return file_error(errno, "fsync", path_);
    return absl::OkStatus();
  }
  absl::Status close() override {
    // Whatever it returns, Linux has closed the descriptor: never twice.
    if (::close(fd_.release()) != 0) return file_error(errno, "close", path_);
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kAheadBytes = 4 << 20;

  /// The disk works while the next bytes are made, and sync() waits for the rest only. A hint: an
  /// error of the disk is sync()'s to report.
  void begin_writeback() {
    (void)::sync_file_range(fd_.get(), begun_, written_ - begun_, SYNC_FILE_RANGE_WRITE);
    begun_ = written_;
  }

  FileDescriptor fd_;
  const std::string path_;
  int64_t written_ = 0;
  int64_t begun_ = 0;  // bytes that the disk was told of
};

class PosixReadableFile : public ReadableFile {
 public:
  PosixReadableFile(FileDescriptor fd, std::string path)
      : fd_(std::move(fd)), path_(std::move(path)) {}

  absl::Status read(int64_t offset, absl::Span<char> to) override {
    while (!to.empty()) {
      const ssize_t count = ::pread(fd_.get(), to.data(), to.size(), offset);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return file_error(errno, "read", path_);
      if (count == 0) {
        return absl::OutOfRangeError(absl::StrCat("[checkpoint] cannot read '", path_,
                                                  "': it ends at byte ", offset, ", expected ",
                                                  to.size(), " more; it was truncated"));
      }
      offset += count;
      to.remove_prefix(static_cast<size_t>(count));
    }
    return absl::OkStatus();
  }

 private:
  FileDescriptor fd_;
  const std::string path_;
};

/// The descriptors of locks. A child of fork() shares each with its parent, whose lock would last
/// as long as the child, so there they are closed.
class LockDescriptors {
 public:
  static LockDescriptors& all() {
    static auto* const descriptors = new LockDescriptors;  // never destroyed
    return *descriptors;
  }
  /// Of more than there is room for, children keep the lock.
  void add(int fd) {
    const std::lock_guard lock(mutex_);
    *std::find(fds_.begin(), fds_.end() - 1, -1) = fd;
  }
  void remove(int fd) {
    const std::lock_guard lock(mutex_);
    std::replace(fds_.begin(), fds_.end(), fd, -1);
  }

 private:
  // Not hold_across_fork(), which needs LibTorch: tessera-checkpoint links this.
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
      (void)fd_.release();  // fork() has closed it
    }
  }

 private:
  const pid_t owner_ = ::getpid();
  FileDescriptor fd_;  // closing it unlocks
};

/// The first bytes of a small file; what can be read of it.
std::string text_of_file(int fd) {
  char text[256];
  const ssize_t count = ::pread(fd, text, sizeof(text), 0);
  return count > 0 ? std::string(text, static_cast<size_t>(count)) : std::string();
}

absl::Status lock_descriptor(int fd, int kind, const std::string& path) {
  while (::flock(fd, kind | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) {
      return absl::FailedPreconditionError(
          absl::StrCat("[checkpoint] cannot lock '", path, "': held by ",
                       printable(text_of_file(fd)), "; wait until that ends, or use another path"));
    }
    if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP) {
      return absl::UnimplementedError(absl::StrCat("[checkpoint] cannot lock '", path,
                                                   "': ", std::strerror(errno), " (errno ", errno,
                                                   "); use a file system that has locks"));
    }
    return file_error(errno, "lock", path);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status file_error(int error, std::string_view operation, std::string_view path) {
  absl::StatusCode code = absl::ErrnoToStatusCode(error);
  // Abseil gives ENODEV, ENOMEDIUM and ESRCH this code, too. A file system that is away must not
  // look like a file that is absent.
  if (code == absl::StatusCode::kNotFound && error != ENOENT) code = absl::StatusCode::kUnavailable;
  return with_errno(
      {code, absl::StrCat("[checkpoint] cannot ", std::string(operation), " '", std::string(path),
                          "': ", std::strerror(error), " (errno ", error, ")")},
      error);
}

namespace {

/// Where a file may not grow (ulimit -f), write() sends SIGXFSZ, which ends the process, and then
/// fails with EFBIG. While this lives the thread gets the error alone.
class NoSizeSignal {
 public:
  NoSizeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    ::pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~NoSizeSignal() {
    const timespec now = {};
    if (!sigismember(&before_, SIGXFSZ)) {
      while (::sigtimedwait(&signal_, nullptr, &now) > 0) continue;
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSizeSignal(const NoSizeSignal&) = delete;
  NoSizeSignal& operator=(const NoSizeSignal&) = delete;

 private:
  sigset_t signal_;
  sigset_t before_;
};

}  // namespace

absl::Status write_all(int fd, std::string_view bytes, const std::string& path) {
  const NoSizeSignal no_size_signal;
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return file_error(errno, "write", path);
    // Not for regular files; a caller that went on would do so for ever.
    if (count == 0) return file_error(EIO, "write", path);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WritableFile>> PosixFileSystem::create(const std::string& path) {
  FileDescriptor fd = open_descriptor(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  if (!fd.is_open()) return file_error(errno, "create", path);
  // Whatever the umask left of it.
  if (::fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    return file_error(error, "set the mode of", path);
  }
  return std::make_unique<PosixWritableFile>(std::move(fd), path);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> PosixFileSystem::open(const std::string& path) {
  // A FIFO without a writer would block.
  FileDescriptor fd = open_descriptor(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!fd.is_open() && errno == ELOOP) {
    return absl::FailedPreconditionError(
        absl::StrCat("[checkpoint] cannot open '", path,
                     "': got a symbolic link, expected a file; put the file itself there"));
  }
  if (!fd.is_open()) return file_error(errno, "open", path);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return file_error(errno, "stat", path);
  if (!S_ISREG(status.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("[checkpoint] cannot open '", path, "': got no regular file, expected one"));
  }
  return std::make_unique<PosixReadableFile>(std::move(fd), path);
}

absl::Status PosixFileSystem::make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), S_IRWXU) != 0) return file_error(errno, "make the directory", path);
  if (::chmod(path.c_str(), S_IRWXU) != 0) {
    const int error = errno;
    ::rmdir(path.c_str());
    return file_error(error, "set the mode of", path);
  }
  return absl::OkStatus();
}

absl::Status PosixFileSystem::sync_directory(const std::string& path) {
  const FileDescriptor fd = open_descriptor(path, O_RDONLY | O_DIRECTORY);
  if (!fd.is_open()) return file_error(errno, "open", path);
  if (::fsync(fd.get()) != 0) return file_error(errno, "fsync", path);
  return absl::OkStatus();
}

absl::Status PosixFileSystem::rename(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) {
    return absl::OkStatus();
  }
  if (errno == EINVAL || errno == ENOSYS) {  // a file system without that flag (NFS)
    const auto taken = exists(*this, to);
    if (!taken.ok()) return taken.status();
    errno = *taken ? EEXIST : 0;
    if (!*taken && ::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  }
  return file_error(errno, absl::StrCat("rename '", from, "' to"), to);
}

absl::Status PosixFileSystem::remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0) return file_error(errno, "remove", path);
  return absl::OkStatus();
}

absl::Status PosixFileSystem::remove_directory(const std::string& path) {
  if (::rmdir(path.c_str()) != 0) return file_error(errno, "remove the directory", path);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> PosixFileSystem::list(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), &::closedir);
  if (directory == nullptr) return file_error(errno, "list", path);
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* const found = ::readdir(directory.get());
    if (found == nullptr) break;
    const std::string_view name = found->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return file_error(errno, "list", path);
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<FileEntry> PosixFileSystem::entry(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return file_error(errno, "stat", path);
  FileEntry entry{.kind = FileEntry::Kind::kOther, .bytes = 0};
  if (S_ISDIR(status.st_mode)) entry.kind = FileEntry::Kind::kDirectory;
  if (S_ISLNK(status.st_mode)) entry.kind = FileEntry::Kind::kLink;
  if (S_ISREG(status.st_mode)) entry = {.kind = FileEntry::Kind::kFile, .bytes = status.st_size};
  return entry;
}

absl::StatusOr<int64_t> PosixFileSystem::free_bytes(const std::string& path) {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) return file_error(errno, "ask for space in", path);
  int64_t bytes = 0;
  if (__builtin_mul_overflow(status.f_bavail, status.f_frsize, &bytes)) return INT64_MAX;
  return bytes;
}

absl::StatusOr<std::unique_ptr<FileLock>> PosixFileSystem::lock(const std::string& path,
                                                                const std::string& holder) {
  FileDescriptor fd = open_descriptor(path, O_RDWR | O_CREAT | O_NOFOLLOW);
  if (!fd.is_open()) return file_error(errno, "open", path);
  if (absl::Status status = lock_descriptor(fd.get(), LOCK_EX, path); !status.ok()) return status;
  if (::fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0) return file_error(errno, "chmod", path);
  if (::ftruncate(fd.get(), 0) != 0) return file_error(errno, "truncate", path);
  if (absl::Status status = internal::write_all(fd.get(), holder, path); !status.ok()) {
    return status;
  }
  return std::make_unique<PosixFileLock>(std::move(fd));
}

absl::StatusOr<std::unique_ptr<FileLock>> PosixFileSystem::lock_content(const std::string& path,
                                                                        bool alone) {
  FileDescriptor fd = open_descriptor(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!fd.is_open()) return file_error(errno, "open", path);
  absl::Status status = lock_descriptor(fd.get(), alone ? LOCK_EX : LOCK_SH, path);
  if (is_held(status)) {  // its text is the content's, not the holder's
    return absl::FailedPreconditionError(
        absl::StrCat("[checkpoint] cannot lock '", path, "': it is being ",
                     alone ? "read by another process" : "removed"));
  }
  if (!status.ok()) return status;
  return std::make_unique<PosixFileLock>(std::move(fd));
}

}  // namespace tessera::internal
