#include "tessera/core/comm/mpi/envelope.h"

#include <algorithm>

#include "tessera/core/comm/groups/call_tag.h"

namespace tessera::internal::mpi {

void Envelope::set_tag(std::string_view tag) {
  text_length = static_cast<uint32_t>(tag.size());
  text_hash = hash_of_tag(tag);
  tag.copy(text, kTagBytes);
}

void Envelope::set_cause(std::string_view cause) {
  text_length = static_cast<uint32_t>(cause.size());
  cause.copy(text, sizeof(text));
}

uint64_t group_key(std::string_view name) { return std::max<uint64_t>(hash_of_tag(name), 1); }

}  // namespace tessera::internal::mpi
