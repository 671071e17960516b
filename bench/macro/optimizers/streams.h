#pragma once

#include <array>
#include <cstdint>

namespace bench {

/// Reads all arrays of `numel` values and writes all but the last of them, one addition each.
void pass(const std::array<float*, 3>& arrays, int64_t numel);
void pass(const std::array<float*, 4>& arrays, int64_t numel);

}  // namespace bench
