#include "tessera/core/process/system_refusal.h"

#include <cerrno>
#include <cstring>

#include <absl/strings/str_cat.h>

namespace tessera::internal {
namespace {

std::string remedy(const char* call, int error) {
  switch (error) {
    case EPERM:
    case ENOSYS:
    case EOPNOTSUPP:
    case EAFNOSUPPORT:
      return absl::StrCat("; a seccomp profile or an old kernel refuses it: allow ", call,
                          " in the profile of the container");
    case EMFILE:
      return "; raise ulimit -n";
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
