// Recomputation on a GPU draws the same random numbers as the forward.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/activation_checkpoint.h"
#include "tessera/tests/gpu/same_on_both.h"

namespace tessera::internal::testing {
namespace {

at::Tensor gradient_of_dropout(bool preserve) {
  torch::manual_seed(3);
  const at::Tensor input = draw({64, 8}, a_gpu()).set_requires_grad(true);
  const auto fn = [](const at::Tensor& x) { return torch::dropout(x, 0.5, /*train=*/true) * x; };
  at::Tensor output = checkpoint({.preserve_random_state = preserve}, fn, input);
  at::rand({7}, at::TensorOptions().device(a_gpu()));  // advances the generator
  output.sum().backward();
  return input.grad();
}

at::Tensor expected_gradient() {
  torch::manual_seed(3);
  const at::Tensor input = draw({64, 8}, a_gpu()).set_requires_grad(true);
  (torch::dropout(input, 0.5, /*train=*/true) * input).sum().backward();
  return input.grad();
}

TEST(CheckpointOnGpu, DropsTheSameElementsAgain) {
  const at::Tensor expected = expected_gradient();
  EXPECT_TRUE(gradient_of_dropout(true).cpu().equal(expected.cpu()));
  EXPECT_FALSE(gradient_of_dropout(false).cpu().equal(expected.cpu()))
      << "the test would not notice";
}

}  // namespace
}  // namespace tessera::internal::testing
