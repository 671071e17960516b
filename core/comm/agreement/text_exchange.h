#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/process_group.h"

namespace tessera::internal {

/// Gives every rank every rank's `text`, by rank.
inline std::vector<std::string> exchange_texts(ProcessGroup& group, std::string_view text,
                                               std::string_view tag) {
  return group.all_gather_bytes(text, tag);
}

}  // namespace tessera::internal
