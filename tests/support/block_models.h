#pragma once

#include <vector>

#include "tessera/tests/support/models.h"

namespace tessera::internal::testing {

/// Models of several blocks in a ModuleList, as default wrapping finds them: more units than
/// buffers, operators that read several units, ties across units, branches between them.
std::vector<Subject> block_subjects();

}  // namespace tessera::internal::testing
