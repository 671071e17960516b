#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::internal {

/// Returns why elements of `sizes` and `strides` do not fill a block without gaps and overlap: "got
/// X, expected Y"; "" if they do. Does not use LibTorch.
std::string strides_problem(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides);

/// Returns the strides of a contiguous tensor of `sizes`, as LibTorch defines them. Does not use
/// LibTorch.
std::vector<int64_t> row_major_strides(const std::vector<int64_t>& sizes);

}  // namespace tessera::internal
