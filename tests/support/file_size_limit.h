#pragma once

#include <sys/resource.h>

#include <csignal>

namespace tessera::internal::testing {

/// While alive, ignores SIGXFSZ, so that writing beyond the file size limit is an error and does
/// not end the process.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() = default;
  ~NoFileSizeSignal() { std::signal(SIGXFSZ, before_); }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;

 private:
  void (*const before_)(int) = std::signal(SIGXFSZ, SIG_IGN);
};

/// While alive, limits the size of files, shared memory included. The limit is the process's: set
/// it from one thread, before ranks that are threads start and until they have ended. Two limits
/// that overlap would leave the lower one in force.
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
