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

/// Returns the text that refuse_on_all_ranks() throws if rank R has problems[R]; "" if no rank has
/// a problem.
std::string refusal_text(const std::vector<std::string>& problems, std::string_view what);

/// Collective. Checks that all ranks have the same lines, for instance one line per parameter.
/// Cheap when they do: hashes are exchanged, the texts only on a difference. Then every rank throws
/// the same c10::Error:
///   [what] rank 1 differs from rank 0 at entry 5: '<line of rank 1>' vs '<line of rank 0>'; ...
/// with the first difference of each rank that differs from rank 0. Entries count from 0.
void require_equal(ProcessGroup& group, const std::vector<std::string>& lines,
                   std::string_view what);

}  // namespace tessera::internal
