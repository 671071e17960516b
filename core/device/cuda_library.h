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
/// if the program asks before (torch::cuda::is_available(), torch::manual_seed(), backward()), the
/// answer is no for the life of the process. So this must come first, and checks that it does.
struct CudaLibrary {
  std::string path;      ///< of libtorch_cuda.so
  int device_count = 0;  ///< GPUs that this process sees, at least 1
};

/// Local. Opens the library, unless it is there already; the first time takes up to seconds. It is
/// looked for in the folders of TESSERA_CUDA_LIBRARIES (separated by ':'); if that is not set,
/// beside the libtorch_cpu.so that is loaded, then where the loader looks. Never unloaded. Any
/// thread.
///
/// The error lists all problems, each with its remedy: no library, one that lacks another library,
/// one of another build of LibTorch than the loaded one, no driver or an old one, no GPU, and a
/// process in which LibTorch has decided already that there is no CUDA.
absl::StatusOr<CudaLibrary> load_cuda_library(
    const EnvironmentLookup& lookup = process_environment);

}  // namespace tessera::internal
