// Registers all operators that the CPU has a kernel for, and replaces those that would choose
// another kernel on a GPU, so that results have the CPU's bits.
#include <cmath>
#include <optional>
#include <string>
#include <tuple>

#include <ATen/ATen.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

#include "tessera/tests/support/fake_cuda/host_view.h"
#include "tessera/tests/support/fake_cuda/kernels.h"
#include "tessera/tests/support/fake_cuda/operator_call.h"

namespace tessera::internal::testing {
namespace {

using at::Tensor;

/// Draws and divides as the CPU's dropout does.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p,
                                          std::optional<bool> /*train*/) {
  Tensor noise = at::empty_like(input);
  noise.bernoulli_(1 - p);
  const Tensor mask = noise.to(at::kBool);
  if (p < 1) noise.div_(1 - p);
  return {input * noise, mask};
}

Tensor native_dropout_backward(const Tensor& grad, const Tensor& mask, double scale) {
  if (scale == 0) return at::zeros_like(grad);
  return grad * mask.to(grad.scalar_type()).div_(1 / scale);
}

/// Chooses as the CPU does. The CPU's fused attention stands for efficient_attention, the GPU's
/// fused attention that takes masks.
int64_t choose_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                         const std::optional<Tensor>& mask, double dropout, bool is_causal,
                         std::optional<double> scale, bool enable_gqa) {
  const auto view = [](const Tensor& tensor) {
    return host_view(tensor, Keep::kYes).set_requires_grad(tensor.requires_grad());
  };
  const int64_t choice = at::_fused_sdp_choice(view(query), view(key), view(value),
                                               mask ? std::optional(view(*mask)) : std::nullopt,
                                               dropout, is_causal, scale, enable_gqa);
  const auto math = static_cast<int64_t>(at::SDPBackend::math);
  return choice == math ? math : static_cast<int64_t>(at::SDPBackend::efficient_attention);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention(const Tensor& query, const Tensor& key,
                                                     const Tensor& value,
                                                     const std::optional<Tensor>& mask,
                                                     bool /*with_log_sum*/, double dropout,
                                                     bool is_causal, std::optional<double> scale) {
  auto [out, log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout,
                                                                        is_causal, mask, scale);
  const Tensor none = at::zeros({}, query.options().dtype(at::kLong));
  return {out, log_sum, none, none.clone()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& mask, const Tensor& out, const Tensor& log_sum, const Tensor& /*seed*/,
    const Tensor& /*offset*/, double dropout, std::array<bool, 4> /*wanted*/, bool is_causal,
    std::optional<double> scale) {
  if (!grad.defined()) return {};
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, query, key, value, out, log_sum, dropout, is_causal,
      mask.defined() ? std::optional(mask) : std::nullopt, scale);
  return {dq, dk, dv, Tensor()};
}

/// On a GPU a softmax may read half precision and write single precision.
void softmax(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto& from_half = torch::jit::peek(*stack, 2, 3);
  if (from_half.toBool()) {
    auto& input = torch::jit::peek(*stack, 0, 3);
    input = input.toTensor().to(at::kFloat);
    from_half = false;
  }
  call_on_cpu(op, stack);
}

void softmax_backward(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto wanted = torch::jit::peek(*stack, 3, 4).toScalarType();
  const auto given = torch::jit::peek(*stack, 0, 4).toTensor().scalar_type();
  if (wanted == given) return call_on_cpu(op, stack);
  torch::jit::peek(*stack, 3, 4) = given;
  call_on_cpu(op, stack);
  stack->back() = stack->back().toTensor().to(wanted);
}

void take_from_cpu(torch::Library& kernels, const std::string& name) {
  kernels.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&call_on_cpu>());
}

/// Registers all operators that `cpu` has kernels for and `cuda` does not.
void take_all(torch::Library& kernels, c10::DispatchKey cpu, c10::DispatchKey cuda) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(cpu)) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || op->hasKernelForDispatchKey(cuda)) continue;
    take_from_cpu(kernels, name.name.substr(6) +
                               (name.overload_name.empty() ? "" : "." + name.overload_name));
  }
}

TORCH_LIBRARY_IMPL(aten, CUDA, kernels) {
  add_memory_kernels(kernels);
  add_recurrent_cells(kernels);
  kernels.impl("native_dropout", native_dropout);
  kernels.impl("native_dropout_backward", native_dropout_backward);
  kernels.impl("_scaled_dot_product_efficient_attention", attention);
  kernels.impl("_scaled_dot_product_efficient_attention_backward", attention_backward);
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_attention);
  for (const char* name : {"_softmax", "_log_softmax"}) {
    kernels.impl(name, torch::CppFunction::makeFromBoxedFunction<&softmax>());
  }
  for (const char* name : {"_softmax_backward_data", "_log_softmax_backward_data"}) {
    kernels.impl(name, torch::CppFunction::makeFromBoxedFunction<&softmax_backward>());
  }
  // These choose a kernel by their tensors' device.
  for (const char* name : {"convolution", "convolution_backward"}) take_from_cpu(kernels, name);
  take_all(kernels, c10::DispatchKey::CPU, c10::DispatchKey::CUDA);
}

TORCH_LIBRARY_IMPL(aten, SparseCUDA, kernels) {
  take_all(kernels, c10::DispatchKey::SparseCPU, c10::DispatchKey::SparseCUDA);
}

}  // namespace
}  // namespace tessera::internal::testing
