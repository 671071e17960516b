#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace prove {

/// Numbers from a formula instead of a generator, so that they can be reproduced in any language:
/// element i of `seed` hashes (seed, i) with splitmix64's finalizer and takes the upper 24 bits.
/// The result has doubles: multiples of 2^-23 in [-1, 1).
at::Tensor numbers(at::IntArrayRef sizes, uint64_t seed);

/// Whole numbers in [-most, most], as doubles.
at::Tensor whole_numbers(at::IntArrayRef sizes, uint64_t seed, int64_t most);

}  // namespace prove
