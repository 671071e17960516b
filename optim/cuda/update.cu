#include "tessera/optim/cuda/abi.h"
#include "tessera/optim/cuda/launch.h"
#include "tessera/optim/cuda/update_body.h"

namespace tessera::internal::cuda {
namespace {

__global__ void __launch_bounds__(kBlockThreads) advance_kernel(AdvanceArguments arguments) {
  advance_body(arguments, this_thread_of_grid());
}

template <typename Rule, typename Gradient, typename Target>
__global__ void __launch_bounds__(kBlockThreads)
    update_kernel(UpdateArrays<Rule, Gradient, Target> arrays, UpdatePieces pieces) {
  update_body(arrays, pieces, this_block(), this_thread());
}

}  // namespace

extern "C" int tessera_cuda_advance(const AdvanceArguments* arguments, void* stream) {
  if (arguments == nullptr || arguments->count < 0) return kRefusedArgument;
  if (arguments->count == 0) return 0;
  const int64_t blocks = (arguments->count + kBlockThreads - 1) / kBlockThreads;
  return launch(advance_kernel, blocks_for(blocks), kBlockThreads, stream, *arguments);
}

extern "C" int tessera_cuda_update(const UpdateArguments* arguments, void* stream) {
  if (arguments == nullptr || arguments->piece_count < 0) return kRefusedArgument;
  return with_update(
      *arguments, [stream]<typename Rule, typename Gradient, typename Target>(
                      const UpdateArrays<Rule, Gradient, Target>& arrays, const UpdatePieces& of) {
        if (of.count == 0) return 0;
        return launch(update_kernel<Rule, Gradient, Target>, blocks_for(of.count), kBlockThreads,
                      stream, arrays, of);
      });
}

}  // namespace tessera::internal::cuda
