#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/process_group.h"

namespace tessera::internal {

/// Makes all ranks throw if one must: if any rank passes a non-empty `problem`, every rank throws
/// the same c10::Error "[what] <ranks>: problem", one entry per distinct problem, each of at most
/// ten lines; <ranks> is "rank 1", "ranks 0, 2" or "all ranks". Collective, blocking; one small
/// all-gather when there is nothing to say.
void refuse_on_all_ranks(ProcessGroup& group, std::string_view problem, std::string_view what);

/// What refuse_on_all_ranks() throws if rank R has problems[R]; empty if none has one.
std::string refusal_text(const std::vector<std::string>& problems, std::string_view what);

}  // namespace tessera::internal
