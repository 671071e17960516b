#include "tessera/core/process/descriptor_limit.h"

#include <sys/resource.h>

#include <cstring>

#include <absl/strings/str_cat.h>

namespace tessera::internal {
namespace {

constexpr rlim_t kMoreDescriptors = 64;  // with these a rank gets through what it opens

}  // namespace

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

std::string open_error_text(int error) {
  std::string text = std::strerror(error);
  rlimit limit{};
  if (error == EMFILE && ::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    absl::StrAppend(&text, ", all ", limit.rlim_cur,
                    " descriptors that this process may have are open; raise the limit to ",
                    limit.rlim_cur + kMoreDescriptors, " or more (ulimit -n)");
  }
  return text;
}

}  // namespace tessera::internal
