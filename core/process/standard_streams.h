#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace tessera::internal {

/// Opens /dev/null as each of the descriptors 0 to 2 that is closed (`train >&-`). Otherwise the
/// next file or shared memory that the process opens would get the number of the closed descriptor,
/// and printed text would be written into it. Local. Throws c10::Error if /dev/null cannot be
/// opened.
void open_standard_streams();

/// If `fd` is above 2, returns it. Otherwise returns a close-on-exec duplicate above 2, and closes
/// `fd`. (`fd` is 0 to 2 if that standard stream was closed when `fd` was opened.) Returns -1, with
/// errno set, if no descriptor is free or `fd` is negative. Local; does not use LibTorch.
inline int above_standard_streams(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int above = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int reason = errno;
  ::close(fd);
  errno = reason;
  return above;
}

}  // namespace tessera::internal
