#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/process_group.h"

namespace tessera::internal {

/// Collective. Checks that all ranks have the same lines, for instance one line per parameter.
/// Cheap when they do: hashes are exchanged, the texts only on a difference. Then every rank throws
/// the same c10::Error:
///   [what] rank 1 differs from rank 0 at entry 5: '<line of rank 1>' vs '<line of rank 0>'; ...
/// with the first difference of each rank that differs from rank 0. Entries count from 0.
void require_equal(ProcessGroup& group, const std::vector<std::string>& lines,
                   std::string_view what);

}  // namespace tessera::internal
