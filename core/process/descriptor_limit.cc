#include "tessera/core/process/descriptor_limit.h"

#include <sys/resource.h>

namespace tessera::internal {

bool raise_descriptor_limit() {
  const int reason = errno;
  rlimit limit{};
  bool is_raised = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max;
  if (is_raised) {
    limit.rlim_cur = limit.rlim_max;
    is_raised = ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
  }
  errno = reason;
  return is_raised;
}

}  // namespace tessera::internal
