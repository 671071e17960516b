#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/process_group.h"

namespace tessera::internal {

/// Makes all ranks throw if one must. If any rank passes a non-empty `problem`, every rank throws
/// the same c10::Error: one entry "[what] <ranks>: problem" per distinct problem, each cut after
/// ten lines. <ranks> is "rank 1", "ranks 0, 2" or "all ranks". Collective, blocking; costs one
/// small all-gather if no rank has a problem.
void refuse_on_all_ranks(ProcessGroup& group, std::string_view problem, std::string_view what);

/// Returns the text that refuse_on_all_ranks() throws if rank R has problems[R]; "" if no rank has
/// a problem.
std::string refusal_text(const std::vector<std::string>& problems, std::string_view what);

/// Collective. Checks that all ranks have the same lines, for instance one line per parameter.
/// Exchanges hashes, and the lines only if the hashes differ. If they do, every rank throws the
/// same c10::Error:
///   [what] rank 1 differs from rank 0 at entry 5: '<line of rank 1>' vs '<line of rank 0>'; ...
/// with the first difference of each rank that differs from rank 0, for up to four ranks. Entries
/// count from 0.
void require_equal(ProcessGroup& group, const std::vector<std::string>& lines,
                   std::string_view what);

}  // namespace tessera::internal
