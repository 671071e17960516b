#include "tessera/core/process/system_refusal.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include <absl/strings/str_cat.h>

namespace tessera::internal {
namespace {

std::string more_descriptors() {
  constexpr rlim_t kMore = 64;  // with these a rank gets through what it opens
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return "; raise ulimit -n";
  return absl::StrCat("; all ", limit.rlim_cur,
                      " descriptors that this process may have are open: ", "raise the limit to ",
                      limit.rlim_cur + kMore, " or more (ulimit -n)");
}

std::string remedy(const char* call, int error) {
  switch (error) {
    case EPERM:
    case ENOSYS:
    case EOPNOTSUPP:
    case EAFNOSUPPORT:
      return absl::StrCat("; a seccomp profile or an old kernel refuses it: allow ", call,
                          " in the profile of the container");
    case EMFILE:
      return more_descriptors();
    case EFBIG:
      return "; raise ulimit -f";
    case ENOMEM:
    case ENOSPC:
      return "; free memory or use less, or raise ulimit -v";
    default:
      return "";
  }
}

}  // namespace

std::string system_refusal(const char* call, int error) {
  return absl::StrCat(call, " said: ", std::strerror(error), remedy(call, error));
}

}  // namespace tessera::internal
