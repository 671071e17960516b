#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/collective.h"

namespace tessera::internal {

/// Whether a message that was sent by `sent` fits a receive with an equal tag.
bool fits(const CallSignature& sent, const CallSignature& received);

/// "rank 1 called recv float32[3] from rank 0 'x' where rank 0 called send int64[3] to rank 1 'x'".
std::string message_mismatch(const std::string& receiver, const CallSignature& received,
                             const std::string& sender, const CallSignature& sent,
                             std::string_view tag);

/// "rank 0 gives rank 1 3 elements where rank 1 expects 4 from rank 0, in all_to_all 'x'".
std::string count_mismatch(const std::string& giver, int64_t given, const std::string& taker,
                           int64_t expected, std::string_view tag);

/// "rank 1 and rank 0 both asked for slice 0 of reduce_scatter SUM float32[8] 'x'; the ranks'
/// slices must be a permutation".
std::string slice_mismatch(const std::string& rank, const std::string& other, int slice,
                           const std::string& call);

}  // namespace tessera::internal
