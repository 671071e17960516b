#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/optim/sharded_model.h"
#include "tessera/tests/support/same_bits.h"

namespace tessera::internal {

/// Whole blocks of the kernels, tails, views in other orders, an empty one, a scalar, a frozen one.
inline std::vector<NamedTensor> twin_parameters(at::ScalarType dtype) {
  torch::manual_seed(11);
  const auto random = [&](at::IntArrayRef sizes) {
    return torch::randn(sizes, torch::kDouble).to(dtype);
  };
  const std::vector<std::pair<std::string, at::Tensor>> tensors = {
      {"conv", random({5, 3, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast)},
      {"turned", random({13, 7}).t()},
      {"frozen", random({9})},
      {"line", random({65})},
      {"empty", random({0, 3})},
      {"scalar", random({})},
      {"wide", random({37, 29})}};
  std::vector<NamedTensor> named;
  named.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    named.push_back({name, tensor.clone().requires_grad_(name != "frozen")});
  }
  return named;
}

/// Gradients; the scalar is used from step 3 on, the line only in some steps.
inline std::vector<at::Tensor> twin_gradients(const std::vector<NamedTensor>& parameters,
                                              int step) {
  torch::manual_seed(100 + step);
  std::vector<at::Tensor> gradients;
  for (const auto& [name, tensor] : parameters) {
    at::Tensor gradient = torch::randn(tensor.sizes(), torch::kDouble).to(tensor.scalar_type());
    const bool has_none = !tensor.requires_grad() || (name == "scalar" && step < 3) ||
                          (name == "line" && step % 3 == 1);
    gradients.push_back(has_none ? at::Tensor() : std::move(gradient));
  }
  return gradients;
}

/// The largest difference from LibTorch's result of a step, in ulps of the sum of an element's
/// sizes before and after the step, which is at least the step's size. 0: the same bits, which
/// formulas with a square root cannot have, because LibTorch's square roots are not rounded
/// correctly.
using Ulps = double;

inline bool is_near(const at::Tensor& got, const at::Tensor& expected, const at::Tensor& before,
                    Ulps ulps) {
  if (ulps == 0) return testing::have_same_bits(got, expected);
  const double ulp = got.scalar_type() == at::kFloat ? std::ldexp(1.0, -23) : std::ldexp(1.0, -52);
  const at::Tensor size = before.abs() + expected.abs();
  return ((got - expected).abs() <= size * (ulps * ulp)).all().item<bool>();
}

/// Trains a plan and LibTorch's own optimizer for `steps` steps, each starting from LibTorch's
/// values; `edit` changes the options of both before each step. Returns the names of the parameters
/// that differ by more after any step.
template <typename Torch, typename Options>
std::set<std::string> differing_plans(
    const OptimizerPlan& plan, const Options& reference_options, at::ScalarType dtype, int slices,
    int steps, Ulps ulps = 0,
    const std::function<void(int step, Options&)>& edit = [](int, Options&) {}) {
  const torch::NoGradGuard no_grad;
  const std::vector<NamedTensor> reference = twin_parameters(dtype);
  std::vector<at::Tensor> trained;
  for (const NamedTensor& parameter : reference) {
    if (parameter.tensor.requires_grad()) trained.push_back(parameter.tensor);
  }
  Torch optimizer(trained, reference_options);
  ShardedModel model(twin_parameters(dtype), plan, slices);
  const auto edit_options = [&edit](int step, torch::optim::Optimizer& of) {
    edit(step, static_cast<Options&>(of.param_groups()[0].options()));
  };
  std::set<std::string> names;
  for (int step = 0; step < steps; ++step) {
    edit_options(step, optimizer);
    for (int slice = 0; slice < slices; ++slice) edit_options(step, model.optimizer(slice));
    const std::vector<at::Tensor> gradients = twin_gradients(reference, step);
    std::vector<at::Tensor> before;
    for (size_t i = 0; i < reference.size(); ++i) {
      before.push_back(reference[i].tensor.clone());
      reference[i].tensor.mutable_grad() =
          gradients[i].defined() ? gradients[i].clone() : at::Tensor();
    }
    optimizer.step();
    model.update(gradients);
    for (size_t i = 0; i < reference.size(); ++i) {
      const at::Tensor& got = model.table()[i].tensor;
      const at::Tensor& expected = reference[i].tensor;
      if (!is_near(got, expected, before[i], ulps)) names.insert(reference[i].name);
      got.detach().copy_(expected);
    }
  }
  return names;
}

/// differing_plans() for a plan with `options` alone.
template <typename Torch, typename Options>
std::set<std::string> differing(
    const Options& options, const Options& reference_options, at::ScalarType dtype, int slices,
    int steps, Ulps ulps,
    const std::function<void(int step, Options&)>& edit = [](int, Options&) {}) {
  return differing_plans<Torch, Options>(options, reference_options, dtype, slices, steps, ulps,
                                         edit);
}

}  // namespace tessera::internal
