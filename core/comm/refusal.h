#pragma once

#include <string>
#include <string_view>

#include "tessera/core/comm/process_group.h"

namespace tessera {

/// Lets ranks refuse together what one of them must refuse: if any rank passes a non-empty
/// `problem`, every rank throws the same c10::Error
/// "[what] rank R: problem", one line per rank that has one. Collective, blocking; one small
/// all-gather when there is nothing to say.
void refuse_together(ProcessGroup& group, std::string_view problem, std::string_view what);

}  // namespace tessera
