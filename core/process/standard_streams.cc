#include "tessera/core/process/standard_streams.h"

#include <cstring>

#include <c10/util/Exception.h>

namespace tessera::internal {

void open_standard_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    // This gets the lowest free descriptor, which is `stream`.
    const int fd = ::open("/dev/null", O_RDWR);
    TORCH_CHECK(fd >= 0, "[rendezvous] standard streams: got no /dev/null (", std::strerror(errno),
                "), expected it where stdin, stdout or stderr are closed; leave them open");
  }
}

}  // namespace tessera::internal
