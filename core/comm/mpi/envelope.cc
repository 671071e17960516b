#include "tessera/core/comm/mpi/envelope.h"

#include <algorithm>

#include <xxhash.h>

namespace tessera::internal::mpi {

void Envelope::set_tag(std::string_view tag) {
  text_length = static_cast<uint32_t>(tag.size());
  text_hash = tag_hash(tag);
  tag.copy(text, kTagBytes);
}

void Envelope::set_cause(std::string_view cause) {
  text_length = static_cast<uint32_t>(cause.size());
  cause.copy(text, sizeof(text));
}

uint64_t tag_hash(std::string_view tag) { return XXH3_64bits(tag.data(), tag.size()); }

uint64_t group_key(std::string_view name) {
  return std::max<uint64_t>(XXH3_64bits(name.data(), name.size()), 1);
}

}  // namespace tessera::internal::mpi
