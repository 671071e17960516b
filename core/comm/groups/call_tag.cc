#include "tessera/core/comm/groups/call_tag.h"

#include <xxhash.h>

namespace tessera::internal {

uint64_t hash_of_tag(std::string_view tag) { return XXH3_64bits(tag.data(), tag.size()); }

}  // namespace tessera::internal
