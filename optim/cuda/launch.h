#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_runtime_api.h>

#include "tessera/optim/cuda/abi.h"
#include "tessera/optim/cuda/walk.h"

// How every kernel of the module is launched. Only for nvcc.
namespace tessera::internal::cuda {

inline constexpr unsigned kBlockThreads = 256;
/// A processor runs 5 to 8 blocks at once. With several waves, the last wave, which is not full, is
/// a small part of the time.
inline constexpr int64_t kBlocksPerProcessor = 32;

/// Returns the number of blocks for `jobs`, which each block takes one at a time.
inline unsigned blocks_for(int64_t jobs) {
  int device = 0;
  int processors = 1;
  // If these calls fail, the launch reports the error.
  static_cast<void>(cudaGetDevice(&device));
  static_cast<void>(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  const int64_t most = processors * kBlocksPerProcessor;
  return static_cast<unsigned>(jobs < most ? jobs : most);
}

/// Returns the number of blocks for `numel` elements in packs, one pack per thread at a time.
inline unsigned blocks_for_elements(int64_t numel) {
  constexpr int64_t kBlockNumel = int64_t{kBlockThreads} * kPackNumel;
  return blocks_for((numel + kBlockNumel - 1) / kBlockNumel);
}

/// Queues the kernel and says whether that was possible.
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
