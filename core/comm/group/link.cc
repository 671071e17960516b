#include "tessera/core/comm/group/link.h"

#include <absl/strings/str_cat.h>

namespace tessera::internal {

std::string Link::name_of(int rank) const {
  const int number = number_of(rank);
  return absl::StrCat("rank ", number, number == rank ? "" : " of the world");
}

}  // namespace tessera::internal
