#pragma once

#include <cstdint>
#include <span>

#include "tessera/parameter_table.h"

namespace tessera::internal {

/// Returns a hash (XXH3, 64 bits) of a parameter's name, dtype, shape and values. Values are hashed
/// in logical element order, so the hash does not depend on strides or layout. Local; reads the
/// values once.
uint64_t hash_parameter(const Parameter& parameter);

/// Returns the hash of a model whose parameters have `hashes`, in registration order.
uint64_t combine_hashes(std::span<const uint64_t> hashes);

}  // namespace tessera::internal
