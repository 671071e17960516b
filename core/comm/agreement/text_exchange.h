#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/process_group.h"

namespace tessera::internal {

/// Gives every rank every rank's `text`, by rank. Collective, blocking; for set-up and messages,
/// not for the loop: two all-gathers (one if all texts are empty) and fresh memory.
std::vector<std::string> exchange_texts(ProcessGroup& group, std::string_view text,
                                        std::string_view tag);

}  // namespace tessera::internal
