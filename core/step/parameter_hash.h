#pragma once

#include <cstdint>

#include "tessera/core/layout/parameter_table.h"

namespace tessera {

/// A hash (XXH3, 64 bits) over names, dtypes, shapes and values of all parameters, values in
/// logical element order, so that it does not depend on strides or layout. Local; reads every
/// parameter once.
uint64_t hash_parameters(const ParameterTable& table);

}  // namespace tessera
