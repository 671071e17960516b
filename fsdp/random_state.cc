#include "tessera/fsdp/random_state.h"

#include <mutex>

#include <ATen/Context.h>

namespace tessera::internal {
namespace {

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_state_of(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

RandomState::RandomState(std::optional<c10::Device> gpu)
    : gpu_(gpu),
      of_cpu_(state_of(at::globalContext().defaultGenerator(at::kCPU))),
      of_gpu_(gpu ? state_of(at::globalContext().defaultGenerator(*gpu)) : at::Tensor()) {}

void RandomState::install() const {
  set_state_of(at::globalContext().defaultGenerator(at::kCPU), of_cpu_);
  if (gpu_) set_state_of(at::globalContext().defaultGenerator(*gpu_), of_gpu_);
}

}  // namespace tessera::internal
