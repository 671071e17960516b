#pragma once

#include <torch/library.h>

namespace tessera::internal::testing {

/// Adds the operators that LibTorch has per backend: memory, copies, scalars.
void add_memory_kernels(torch::Library& kernels);
/// Adds cells of recurrent layers, which LibTorch fuses on a GPU; it has no such kernels for the
/// CPU.
void add_recurrent_cells(torch::Library& kernels);

}  // namespace tessera::internal::testing
