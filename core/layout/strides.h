#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::internal {

/// Returns why a tensor with these sizes and strides would not fill a block of memory without gaps
/// and overlaps, as "got X, expected Y"; returns "" if it would. Does not use LibTorch.
std::string strides_problem(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides);

/// Returns the strides of a contiguous tensor of `sizes`, as LibTorch defines them. Does not use
/// LibTorch.
std::vector<int64_t> row_major_strides(const std::vector<int64_t>& sizes);

}  // namespace tessera::internal
