#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/lamb_options.h"
#include "tessera/optim/algorithms/algorithms.h"
#include "tessera/tests/optim/sharded_model.h"
#include "tessera/tests/support/plain_lamb.h"

// LAMB over whole parameters, compared with its formula; over slices: tests/equivalence.

namespace tessera::internal {
namespace {

/// Parameters of more than one block, of zeros, and without elements.
std::vector<NamedTensor> lamb_parameters(at::ScalarType dtype) {
  torch::manual_seed(7);
  std::vector<NamedTensor> named;
  for (const auto& [name, tensor] : std::vector<std::pair<std::string, at::Tensor>>{
           {"conv", torch::randn({5, 3, 3, 3}, torch::kDouble)},
           {"turned", torch::randn({13, 7}, torch::kDouble).t()},
           {"zeros", torch::zeros({65}, torch::kDouble)},
           {"scalar", torch::randn({}, torch::kDouble)}}) {
    named.push_back({name, tensor.to(dtype).clone().requires_grad_(true)});
  }
  return named;
}

double largest_difference_from_plain(const LambOptions& options,
                                     const LambOptions& reference_options, at::ScalarType dtype) {
  const std::vector<NamedTensor> reference = lamb_parameters(dtype);
  std::vector<at::Tensor> trained;
  for (const NamedTensor& parameter : reference) trained.push_back(parameter.tensor);
  testing::PlainLamb plain(trained, reference_options);
  ShardedModel model(lamb_parameters(dtype), options, 1);
  model.optimizer(0).whole_tensors()->reserve(/*scratch_bytes=*/64, /*whole_bytes=*/1 << 12);
  for (int step = 0; step < 5; ++step) {
    torch::manual_seed(100 + step);
    std::vector<at::Tensor> gradients;
    for (const NamedTensor& parameter : reference) {
      // In the first step the update of "zeros" is 0, too, so both norms are.
      const double size = parameter.name == "zeros" && step == 0 ? 0.0 : 1.0;
      at::Tensor gradient = torch::empty_like(parameter.tensor, torch::kDouble).normal_() * size;
      gradients.push_back(gradient.to(dtype));
      parameter.tensor.mutable_grad() = gradients.back();
    }
    plain.step();
    model.update(gradients);
  }
  double largest = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const at::Tensor difference = model.table()[i].tensor - reference[i].tensor;
    largest = std::max(largest, difference.abs().max().item<double>());
  }
  return largest;
}

TEST(Lamb, FollowsItsFormula) {
  for (const LambOptions& options :
       {LambOptions(0.02), LambOptions(0.1).weight_decay(0).betas({0.5, 0.9}).eps(1e-3)}) {
    EXPECT_LT(largest_difference_from_plain(options, options, at::kDouble), 1e-14);
    EXPECT_LT(largest_difference_from_plain(options, options, at::kFloat), 1e-5);
  }
  EXPECT_GT(
      largest_difference_from_plain(LambOptions(0.02), LambOptions(0.02).eps(1e-5), at::kDouble),
      1e-9);
}

TEST(Lamb, SaysWhatItIs) {
  ASSERT_EQ(algorithm_of(LambOptions())->name, "LAMB");
  EXPECT_EQ(OptimizerPlan(LambOptions(0.5)).lines()[0],
            "optimizer defaults: LAMB lr 0.5 beta1 0.9 beta2 0.999 eps 1e-06 weight_decay 0.01");
  EXPECT_FALSE(OptimizerPlan(LambOptions().betas({1, 0.9}))
                   .assign(ParameterTable(lamb_parameters(at::kFloat)))
                   .ok());
}

}  // namespace
}  // namespace tessera::internal
