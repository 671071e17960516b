#pragma once

#include <vector>

#include "tessera/optim/algorithm.h"
#include "tessera/optimizer_form.h"

namespace tessera::internal {

/// The hyper-parameters of an Algorithm that runs a user's optimizer: its rate and what its form
/// names.
std::vector<HyperParameterField> fields_of(const ErasedForm& form);

}  // namespace tessera::internal
