#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace program {

/// Reads an IDX file, MNIST's format, of uint8 with `dimensions` dimensions. Throws
/// std::runtime_error that names the file, the problem and the remedy if it cannot be read, is
/// compressed, is of another kind or is incomplete.
at::Tensor read_idx_file(const std::string& path, int dimensions);

}  // namespace program
