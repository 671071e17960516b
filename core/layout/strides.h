#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::internal {

/// Why `sizes` and `strides` do not address every one of their elements in a block without gaps,
/// once: "got X, expected Y"; "" if they do. Free of LibTorch.
std::string strides_problem(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides);

/// The strides of a contiguous tensor of `sizes`, as LibTorch counts them. Free of LibTorch.
std::vector<int64_t> row_major_strides(const std::vector<int64_t>& sizes);

}  // namespace tessera::internal
