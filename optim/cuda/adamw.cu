#include "tessera/optim/cuda/abi.h"
#include "tessera/optim/cuda/adamw_body.h"
#include "tessera/optim/cuda/launch.h"
#include "tessera/optim/cuda/with_elements.h"

namespace tessera::internal::cuda {
namespace {

__global__ void __launch_bounds__(kBlockThreads) advance_kernel(AdvanceArguments arguments) {
  advance_body(arguments, this_thread_of_grid());
}

template <typename Gradient, typename Target>
__global__ void __launch_bounds__(kBlockThreads)
    adamw_kernel(AdamwArrays<Gradient, Target> arrays, const Piece* __restrict__ pieces,
                 int64_t piece_count, const ParameterUpdate* __restrict__ updates) {
  adamw_body(arrays, pieces, piece_count, updates, this_block(), this_thread());
}

template <typename Gradient, typename Target>
int update(const AdamwArguments& by, const Gradient* gradient, Target* target, void* stream) {
  const AdamwArrays<Gradient, Target> arrays = {by.values, gradient, by.moment1, by.moment2,
                                                target};
  return launch(adamw_kernel<Gradient, Target>, blocks_for(by.piece_count), kBlockThreads, stream,
                arrays, by.pieces, by.piece_count, by.updates);
}

}  // namespace

extern "C" int tessera_cuda_advance(const AdvanceArguments* arguments, void* stream) {
  if (arguments == nullptr || arguments->count < 0) return kRefusedArgument;
  if (arguments->count == 0) return 0;
  const int64_t blocks = (arguments->count + kBlockThreads - 1) / kBlockThreads;
  return launch(advance_kernel, blocks_for(blocks), kBlockThreads, stream, *arguments);
}

extern "C" int tessera_cuda_adamw(const AdamwArguments* arguments, void* stream) {
  if (arguments == nullptr || arguments->piece_count < 0) return kRefusedArgument;
  const AdamwArguments& by = *arguments;
  return with_elements(by.gradient_dtype, by.gradient, [&](const auto* gradient) {
    if (by.target == nullptr) {
      if (by.piece_count == 0) return 0;
      return update(by, gradient, static_cast<void*>(nullptr), stream);
    }
    return with_elements(by.target_dtype, by.target, [&]<typename Target>(const Target*) {
      if (by.piece_count == 0) return 0;
      return update(by, gradient, static_cast<Target*>(by.target), stream);
    });
  });
}

}  // namespace tessera::internal::cuda
