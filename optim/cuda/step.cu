#include "tessera/optim/cuda/abi.h"
#include "tessera/optim/cuda/launch.h"
#include "tessera/optim/cuda/step_bodies.h"

namespace tessera::cuda {
namespace {

__global__ void decide_kernel(const int64_t* words, const int64_t* non_finite,
                              const LossScaleState* loss_scale, double max_norm,
                              StepVerdict* verdict) {
  *verdict =
      decide_body(words, *non_finite, loss_scale == nullptr ? 1.0 : loss_scale->scale, max_norm);
}

__global__ void loss_scale_kernel(LossScaleState* state, LossScaleRule rule,
                                  const StepVerdict* verdict) {
  *state = next_loss_scale(*state, rule, /*overflowed=*/verdict->applies == 0);
}

__global__ void __launch_bounds__(kBlockThreads) advance_kernel(AdvanceArguments arguments) {
  advance_body(arguments, this_thread_of_grid());
}

}  // namespace

extern "C" int tessera_cuda_interface_version() { return kInterfaceVersion; }

extern "C" const char* tessera_cuda_error_text(int status) {
  if (status == kRefusedDtype) return "the dtype is none of Float, BFloat16 and Half";
  if (status == kRefusedArgument) return "an argument is null or negative";
  return cudaGetErrorString(static_cast<cudaError_t>(status));
}

extern "C" int tessera_cuda_decide(const int64_t* words, const int64_t* non_finite,
                                   const LossScaleState* loss_scale, double max_norm,
                                   StepVerdict* verdict, void* stream) {
  return launch(decide_kernel, 1, 1, stream, words, non_finite, loss_scale, max_norm, verdict);
}

extern "C" int tessera_cuda_update_loss_scale(LossScaleState* state, LossScaleRule rule,
                                              const StepVerdict* verdict, void* stream) {
  return launch(loss_scale_kernel, 1, 1, stream, state, rule, verdict);
}

extern "C" int tessera_cuda_advance(const AdvanceArguments* arguments, void* stream) {
  if (arguments == nullptr || arguments->count < 0) return kRefusedArgument;
  if (arguments->count == 0) return 0;
  const int64_t blocks = (arguments->count + kBlockThreads - 1) / kBlockThreads;
  return launch(advance_kernel, blocks_for(blocks), kBlockThreads, stream, *arguments);
}

}  // namespace tessera::cuda
