#pragma once

#include <torch/library.h>

namespace tessera::internal::testing {

/// The operators that LibTorch has one of per backend: memory, copies, scalars.
void add_memory_kernels(torch::Library& kernels);
/// Cells of recurrent layers: LibTorch fuses them on a GPU and has no such kernels for the CPU.
void add_recurrent_cells(torch::Library& kernels);

}  // namespace tessera::internal::testing
