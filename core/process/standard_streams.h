#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace tessera::internal {

/// Opens those of the descriptors 0 to 2 that are closed (`train >&-`) on /dev/null. Otherwise the
/// next file or shared memory that the process opens would get such a number, and printed text
/// would be written into it. Local. Throws c10::Error if /dev/null cannot be opened.
void open_standard_streams();

/// Returns `fd`. If that is one of 0 to 2, because a stream was closed meanwhile, closes it and
/// returns a duplicate above them, close-on-exec. -1, with errno set, if there is none or `fd` is
/// negative. Local; free of LibTorch.
inline int above_standard_streams(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int above = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int reason = errno;
  ::close(fd);
  errno = reason;
  return above;
}

}  // namespace tessera::internal
