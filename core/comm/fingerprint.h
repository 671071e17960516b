#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/process_group.h"

namespace tessera {

/// Makes sure that all ranks describe something alike. If any rank's `lines` differ from rank 0's,
/// every rank throws the same c10::Error "[what] rank R differs from rank 0 at entry I: '...' here,
/// '...' on rank 0", one line for each rank that differs, with the first difference of each.
/// Collective, blocking. One small all-gather when all agree; the texts travel only on a
/// difference.
void require_equal(ProcessGroup& group, const std::vector<std::string>& lines,
                   std::string_view what);

}  // namespace tessera
