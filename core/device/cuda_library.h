#pragma once

#include <string>

#include <absl/status/statusor.h>

#include "tessera/environment.h"

namespace tessera::internal {

/// LibTorch's CUDA half (libtorch_cuda.so with libc10_cuda.so and NVIDIA's libraries) in this
/// process.
///
/// Note [One build]
/// ~~~~~~~~~~~~~~~~
/// Programs link LibTorch's CPU half alone, so one binary serves machines with and without CUDA and
/// starts without reading gigabytes. The CUDA half is opened when the program asks for a GPU: its
/// initialisers register streams, events, memory and operators with the CPU half, and from then on
/// LibTorch's own interfaces work on GPUs. But LibTorch determines only once whether there is CUDA:
/// if the program asks before the CUDA half is loaded (torch::cuda::is_available(),
/// torch::manual_seed(), backward()), the answer is no for the life of the process.
/// load_cuda_library() must therefore be called first, and fails if it was not.
struct CudaLibrary {
  std::string path;      ///< of libtorch_cuda.so
  int device_count = 0;  ///< GPUs that this process sees, at least 1
};

/// Local. Opens LibTorch's CUDA half, unless it is open already; the first call takes up to
/// seconds. Looks for it in the folders of TESSERA_CUDA_LIBRARIES (separated by ':') or, if that is
/// not set, beside the loaded libtorch_cpu.so, then where the loader looks. Never unloads it. Any
/// thread.
///
/// The error lists all problems, each with its remedy: no library, a library that lacks another
/// one, a library from another LibTorch build than the loaded CPU half, no driver or an old one, no
/// GPU, and a process in which LibTorch has already decided that there is no CUDA.
absl::StatusOr<CudaLibrary> load_cuda_library(
    const EnvironmentLookup& lookup = process_environment);

}  // namespace tessera::internal
