#include "tessera/optim/cuda/abi.h"
#include "tessera/optim/cuda/gradient_bodies.h"
#include "tessera/optim/cuda/launch.h"
#include "tessera/optim/cuda/with_elements.h"

namespace tessera::internal::cuda {
namespace {

template <typename Gradient>
__global__ void __launch_bounds__(kBlockThreads)
    accumulate_kernel(float* sum, const Gradient* gradient, int64_t numel) {
  accumulate_body(sum, gradient, numel, this_thread_of_grid());
}

template <typename Target>
__global__ void __launch_bounds__(kBlockThreads)
    cast_kernel(Target* target, const float* values, int64_t numel) {
  cast_body(target, values, numel, this_thread_of_grid());
}

/// Words that several threads add to.
struct AtomicWords {
  int64_t* words;
  __device__ void add(size_t word, int64_t amount) { add_atomically(words + word, amount); }
};

template <typename Gradient>
__global__ void __launch_bounds__(kBlockThreads)
    count_kernel(const Gradient* gradient, const Piece* __restrict__ pieces, int64_t piece_count,
                 int64_t* counts) {
  AtomicWords sink = {counts};
  count_body(gradient, pieces, piece_count, this_block(), this_thread(), sink);
}

/// The `lanes` of square_body(): a group of kSquareLanes neighbouring threads, each of which sums
/// one lane of a 64-element block.
struct WarpLanes {
  template <typename Gradient>
  __device__ double sum(const Gradient* block, int numel) const {
    const int lane = static_cast<int>(threadIdx.x) % kSquareLanes;
    // Only the threads of this group take part in the shuffles, because other groups of the warp
    // may be at another block.
    const unsigned group = 0xFFU << (threadIdx.x % 32 / kSquareLanes * kSquareLanes);
    double sum = square_lane(block, numel, lane);
    for (int distance = 1; distance < kSquareLanes; distance *= 2) {
      sum += __shfl_xor_sync(group, sum, distance);
    }
    return sum;
  }
  __device__ bool leads() const { return threadIdx.x % kSquareLanes == 0; }
};

template <typename Gradient>
__global__ void __launch_bounds__(kBlockThreads)
    square_kernel(const Gradient* gradient, const Piece* __restrict__ pieces, int64_t piece_count,
                  int64_t* words) {
  __shared__ int64_t block_words[kExactWords];
  static_assert(kBlockThreads >= kExactWords && kBlockThreads % 32 == 0);
  if (threadIdx.x < kExactWords) block_words[threadIdx.x] = 0;
  __syncthreads();
  AtomicWords sink = {block_words};
  const Worker group = {threadIdx.x / kSquareLanes, kBlockThreads / kSquareLanes};
  square_body(gradient, pieces, piece_count, this_block(), group, WarpLanes(), sink);
  __syncthreads();
  if (threadIdx.x < kExactWords && block_words[threadIdx.x] != 0) {
    add_atomically(words + threadIdx.x, block_words[threadIdx.x]);
  }
}

__global__ void normalize_kernel(int64_t* words) { exact_normalize(words); }

}  // namespace

extern "C" int tessera_cuda_zero(void* to, int64_t bytes, void* stream) {
  if (bytes < 0) return kRefusedArgument;
  return static_cast<int>(
      cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream)));
}

extern "C" int tessera_cuda_accumulate(float* sum, const void* gradient, Dtype dtype, int64_t numel,
                                       void* stream) {
  if (numel < 0) return kRefusedArgument;
  return with_elements(dtype, gradient, [&]<typename Gradient>(const Gradient* elements) {
    if (numel == 0) return 0;
    return launch(accumulate_kernel<Gradient>, blocks_for_elements(numel), kBlockThreads, stream,
                  sum, elements, numel);
  });
}

extern "C" int tessera_cuda_cast(void* target, Dtype dtype, const float* values, int64_t numel,
                                 void* stream) {
  if (numel < 0) return kRefusedArgument;
  return with_elements(dtype, target, [&]<typename Target>(const Target*) {
    if (numel == 0) return 0;
    return launch(cast_kernel<Target>, blocks_for_elements(numel), kBlockThreads, stream,
                  static_cast<Target*>(target), values, numel);
  });
}

extern "C" int tessera_cuda_count_non_finite(const void* gradient, Dtype dtype, const Piece* pieces,
                                             int64_t piece_count, int64_t* counts, void* stream) {
  if (piece_count < 0) return kRefusedArgument;
  return with_elements(dtype, gradient, [&]<typename Gradient>(const Gradient* elements) {
    if (piece_count == 0) return 0;
    return launch(count_kernel<Gradient>, blocks_for(piece_count), kBlockThreads, stream, elements,
                  pieces, piece_count, counts);
  });
}

extern "C" int tessera_cuda_add_squares(const void* gradient, Dtype dtype, const Piece* pieces,
                                        int64_t piece_count, int64_t* words, void* stream) {
  if (piece_count < 0) return kRefusedArgument;
  return with_elements(dtype, gradient, [&]<typename Gradient>(const Gradient* elements) {
    if (piece_count == 0) return 0;
    return launch(square_kernel<Gradient>, blocks_for(piece_count), kBlockThreads, stream, elements,
                  pieces, piece_count, words);
  });
}

extern "C" int tessera_cuda_normalize(int64_t* words, void* stream) {
  return launch(normalize_kernel, 1, 1, stream, words);
}

}  // namespace tessera::internal::cuda
