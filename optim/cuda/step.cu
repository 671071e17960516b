#include "tessera/optim/cuda/abi.h"
#include "tessera/optim/cuda/launch.h"
#include "tessera/optim/cuda/step_bodies.h"

namespace tessera::internal::cuda {
namespace {

/// Runs as one block. Each thread adds up the counts of non-finite elements of some parameters,
/// because a table may have thousands of parameters.
__global__ void __launch_bounds__(kBlockThreads) decide_kernel(DecideArguments arguments) {
  __shared__ int64_t non_finite;
  if (threadIdx.x == 0) non_finite = 0;
  __syncthreads();
  const int64_t share = non_finite_share(arguments, this_thread());
  if (share != 0) add_atomically(&non_finite, share);  // usually 0
  __syncthreads();
  if (threadIdx.x == 0) *arguments.outcome = decide_body(arguments, non_finite);
}

__global__ void loss_scale_kernel(LossScaleState* state, LossScaleRule rule,
                                  const StepOutcome* outcome) {
  *state = loss_scale_body(*state, rule, *outcome);
}

}  // namespace

extern "C" int tessera_cuda_interface_version() { return kInterfaceVersion; }

extern "C" const char* tessera_cuda_error_text(int status) {
  if (status == kRefusedDtype) return "the dtype is none of Float, BFloat16 and Half";
  if (status == kRefusedArgument) return "an argument is null, negative or out of range";
  return cudaGetErrorString(static_cast<cudaError_t>(status));
}

extern "C" int tessera_cuda_decide(const DecideArguments* arguments, void* stream) {
  if (arguments == nullptr || arguments->parameters < 0 || arguments->world_size < 1 ||
      arguments->world_size > kMaxRanks) {
    return kRefusedArgument;
  }
  return launch(decide_kernel, 1, kBlockThreads, stream, *arguments);
}

extern "C" int tessera_cuda_update_loss_scale(LossScaleState* state, LossScaleRule rule,
                                              const StepOutcome* outcome, void* stream) {
  return launch(loss_scale_kernel, 1, 1, stream, state, rule, outcome);
}

}  // namespace tessera::internal::cuda
