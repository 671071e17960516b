#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_runtime_api.h>

#include "tessera/optim/cuda/abi.h"
#include "tessera/optim/cuda/walk.h"

// How every kernel of the module is launched. Only for nvcc.
namespace tessera::internal::cuda {

inline constexpr unsigned kBlockThreads = 256;
/// The most blocks that a launch has for each multiprocessor, which runs 5 to 8 of them at once. So
/// there are several waves of blocks, and the last wave, which may not fill the GPU, is a small
/// part of the time.
inline constexpr int64_t kBlocksPerProcessor = 32;

/// Returns the number of blocks to launch for `jobs` jobs. A block takes one job at a time.
inline unsigned blocks_for(int64_t jobs) {
  int device = 0;
  int processors = 1;
  // If these calls fail, the launch reports the error.
  static_cast<void>(cudaGetDevice(&device));
  static_cast<void>(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  const int64_t most = processors * kBlocksPerProcessor;
  return static_cast<unsigned>(jobs < most ? jobs : most);
}

/// Returns the number of blocks to launch for `numel` elements, if each thread takes one pack at a
/// time.
inline unsigned blocks_for_elements(int64_t numel) {
  constexpr int64_t kBlockNumel = int64_t{kBlockThreads} * kPackNumel;
  return blocks_for((numel + kBlockNumel - 1) / kBlockNumel);
}

/// Queues the kernel. Returns the launch's cudaError_t, 0 if it was queued.
template <typename... Parameters>
int launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, void* stream,
           std::type_identity_t<Parameters>... arguments) {
  void* pointers[] = {&arguments...};
  return static_cast<int>(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks),
                                           dim3(threads), pointers, 0,
                                           static_cast<cudaStream_t>(stream)));
}

#ifdef __CUDACC__
__device__ inline Worker this_block() { return {blockIdx.x, gridDim.x}; }
__device__ inline Worker this_thread() { return {threadIdx.x, blockDim.x}; }
/// Returns the position of this thread among all threads of the grid.
__device__ inline Worker this_thread_of_grid() {
  return {static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x,
          static_cast<int64_t>(gridDim.x) * blockDim.x};
}
__device__ inline void add_atomically(int64_t* to, int64_t amount) {
  // Two's complement: unsigned addition is signed addition.
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(amount));
}
#endif

}  // namespace tessera::internal::cuda
