#include "tessera/checkpoint/files/posix_file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/checkpoint/files/best_effort.h"
#include "tessera/checkpoint/files/posix_file_lock.h"
#include "tessera/core/process/file_descriptor.h"
#include "tessera/core/process/standard_streams.h"
#include "tessera/core/process/unsupported_call.h"

namespace tessera::internal {
namespace {

/// Calls open(2). The descriptor is above those of the standard streams, and exec() closes it.
FileDescriptor open_descriptor(const std::string& path, int flags, mode_t mode = 0600) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);  // FUSE and NFS return this on a signal
  return FileDescriptor(above_standard_streams(fd));
}

/// Calls open_descriptor() and creates the file if it does not exist.
FileDescriptor open_new(const std::string& path, int flags, PosixFileOptions options) {
  const mode_t mode = options.group_access ? 0666 : 0600;
  FileDescriptor fd = open_descriptor(path, flags | O_CREAT | O_NOFOLLOW, mode);
  if (fd.is_open() && !options.group_access) set_mode(fd.get(), path, mode);
  return fd;
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
  absl::Status sync() override { return fsync_file(fd_.get(), path_); }
  absl::Status close() override {
    // Linux closes the descriptor even if close() fails, so never call it again.
    if (::close(fd_.release()) != 0) return file_error(errno, "close", path_);
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kAheadBytes = 4 << 20;

  /// Starts writeback of the bytes written so far, so that sync() has to wait only for later ones.
  /// Errors are ignored here because sync() reports disk errors.
  void begin_writeback() {
    (void)::sync_file_range(fd_.get(), begun_, written_ - begun_, SYNC_FILE_RANGE_WRITE);
    begun_ = written_;
  }

  FileDescriptor fd_;
  const std::string path_;
  int64_t written_ = 0;
  int64_t begun_ = 0;  // bytes whose writeback has begun
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

/// If a file has reached its size limit (ulimit -f), write() fails with EFBIG and also raises
/// SIGXFSZ, which ends the process. While this object lives, the thread gets only the error.
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
    // write() does not return 0 for regular files. If it did, trying again would loop for ever.
    if (count == 0) return file_error(EIO, "write", path);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WritableFile>> PosixFileSystem::create(const std::string& path) {
  FileDescriptor fd = open_new(path, O_WRONLY | O_EXCL, options_);
  if (!fd.is_open()) return file_error(errno, "create", path);
  return std::make_unique<PosixWritableFile>(std::move(fd), path);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> PosixFileSystem::open(const std::string& path) {
  // Opens with O_NONBLOCK, because otherwise opening a FIFO without a writer would block.
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
  const mode_t mode = options_.group_access ? 0777 : 0700;
  if (::mkdir(path.c_str(), mode) != 0) return file_error(errno, "make the directory", path);
  if (!options_.group_access) set_mode(/*fd=*/-1, path, mode);
  return absl::OkStatus();
}

absl::Status PosixFileSystem::sync_directory(const std::string& path) {
  const FileDescriptor fd = open_descriptor(path, O_RDONLY | O_DIRECTORY);
  if (!fd.is_open()) return file_error(errno, "open", path);
  return fsync_directory(fd.get(), path);
}

absl::Status PosixFileSystem::rename(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) {
    return absl::OkStatus();
  }
  if (is_unsupported(errno) || errno == EPERM) {  // e.g. NFS does not know RENAME_NOREPLACE
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

absl::StatusOr<std::unique_ptr<FileLock>> PosixFileSystem::lock(const std::string& path,
                                                                const std::string& holder) {
  // Opens the file without O_CREAT first. With O_CREAT the kernel refuses to open another user's
  // existing file in a sticky directory (fs.protected_regular).
  FileDescriptor fd = open_descriptor(path, O_RDWR | O_NOFOLLOW);
  if (!fd.is_open() && errno == ENOENT) fd = open_new(path, O_RDWR, options_);
  if (!fd.is_open()) return file_error(errno, "open", path);
  const int file = fd.get();
  const std::string held = path + ".held";
  auto lock = flock_file(std::move(fd), /*alone=*/true, path);
  if (absl::IsUnimplemented(lock.status())) {
    auto in_its_place = hold_file(*this, held, holder);
    static std::atomic_flag is_said;
    if (in_its_place.ok() && !is_said.test_and_set()) {
      std::fprintf(stderr,
                   "%s; '%s' is there in its place: after a kill it stays, remove it by hand then. "
                   "Steps that other jobs read are not protected against deletion\n",
                   std::string(lock.status().message()).c_str(), held.c_str());
    }
    return in_its_place;
  }
  if (!lock.ok()) return lock.status();
  // Looks also for the file that replaces a lock: a job on another host, which mounts this file
  // system without locks, may have made it.
  if (const auto is_there = exists(*this, held); !is_there.ok() || *is_there) {
    return is_there.ok() ? held_error(held) : is_there.status();
  }
  (void)!::ftruncate(file, 0);  // on failure the end of an older text stays, which is harmless
  if (absl::Status status = internal::write_all(file, holder, path); !status.ok()) return status;
  return lock;
}

absl::StatusOr<std::unique_ptr<FileLock>> PosixFileSystem::lock_content(const std::string& path,
                                                                        bool alone) {
  constexpr int kFlags = O_NOFOLLOW | O_NONBLOCK;
  // NFS grants an exclusive lock only on a descriptor that is open for writing.
  FileDescriptor fd = open_descriptor(path, kFlags | (alone ? O_RDWR : O_RDONLY));
  if (!fd.is_open() && alone) fd = open_descriptor(path, kFlags | O_RDONLY);
  if (!fd.is_open()) return file_error(errno, "open", path);
  auto lock = flock_file(std::move(fd), alone, path);
  // Replaces flock_file()'s message, which would show the content of this file as if the holder of
  // the lock had written it.
  if (is_held(lock.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("[checkpoint] cannot lock '", path, "': it is being ",
                     alone ? "read by another process" : "removed"));
  }
  return lock;
}

}  // namespace tessera::internal
