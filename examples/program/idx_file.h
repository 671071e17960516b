#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace program {

/// The bytes of an IDX file, as those of MNIST are: uint8 of `dimensions` dimensions. Throws
/// std::runtime_error that names the file, what is wrong with it and the remedy if it cannot be
/// read, is packed, is of another kind or not whole.
at::Tensor read_idx_file(const std::string& path, int dimensions);

}  // namespace program
