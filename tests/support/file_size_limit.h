#pragma once

#include <sys/resource.h>

#include <csignal>

namespace tessera::internal::testing {

/// Ignores, while alive, the signal that ends a process whose file would become too large: it gets
/// an error instead.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() = default;
  ~NoFileSizeSignal() { std::signal(SIGXFSZ, before_); }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;

 private:
  void (*const before_)(int) = std::signal(SIGXFSZ, SIG_IGN);
};

/// Limits the size of files, shared memory included, while alive. The limit is the process's: one
/// thread makes it, before ranks that are threads start and until they have ended. Two that overlap
/// would leave the lower one behind.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_;
};

}  // namespace tessera::internal::testing
