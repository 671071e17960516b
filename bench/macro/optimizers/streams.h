#pragma once

#include <array>
#include <cstdint>

namespace bench {

/// Reads all arrays of `numel` values and writes all except the last, with one addition per written
/// value.
void pass(const std::array<float*, 3>& arrays, int64_t numel);
void pass(const std::array<float*, 4>& arrays, int64_t numel);

}  // namespace bench
