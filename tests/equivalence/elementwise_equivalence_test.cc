#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/elementwise.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/support/own_optimizer.h"
#include "tessera/tests/support/training.h"
#include "tessera/torch_elementwise.h"

// An optimizer that elementwise() runs over slices trains like the same class in a plain loop over
// whole parameters: with equal bits on one rank, where the order of sums is the same.

namespace tessera::internal::testing {
namespace {

using torch::optim::AdamWOptions;

constexpr const char* kOwnModel = "OddMlp";

Outcome train_elementwise(const AlgorithmOptions& options, const Configuration& configuration,
                          int world, at::ScalarType dtype) {
  return train_on_threads(
      subject(kOwnModel), dtype, configuration, schedule_called("Once"), world,
      {.plan = [&](const torch::nn::Module&) { return OptimizerPlan(options); }});
}

/// `Optimizer` in one process on the batches of all ranks.
template <typename Optimizer, typename Options>
std::map<std::string, at::Tensor> plain_loop_of(const Options& options, int size,
                                                at::ScalarType dtype) {
  return train_plainly(subject(kOwnModel), dtype, schedule_called("Once"), size,
                       [&](const std::vector<at::Tensor>& parameters) -> PlainStep {
                         return [by = std::make_shared<Optimizer>(parameters, options)] {
                           by->step();
                         };
                       });
}

template <typename Optimizer, typename Options>
void expect_as_in_a_plain_loop(const Options& options) {
  const AlgorithmOptions plan = elementwise<Optimizer>(options);
  const auto alone = plain_loop_of<Optimizer>(options, 1, at::kFloat);
  for (const Configuration& configuration : named_configurations()) {
    EXPECT_EQ(
        bit_differences(train_elementwise(plan, configuration, 1, at::kFloat).parameters, alone),
        "")
        << configuration;
  }
  for (const int world : {2, 3, 4}) {
    const auto expected = plain_loop_of<Optimizer>(options, world, at::kDouble);
    for (const Configuration& configuration : named_configurations()) {
      EXPECT_EQ(differences(train_elementwise(plan, configuration, world, at::kDouble).parameters,
                            expected, subject(kOwnModel).tolerance),
                "")
          << configuration << " at " << world;
    }
  }
}

TEST(ElementwiseEquivalence, TrainsAsInAPlainLoop) {
  expect_as_in_a_plain_loop<Own<Belief>>(OwnOptions(0.01));
  expect_as_in_a_plain_loop<torch::optim::AdamW>(AdamWOptions(0.01).eps(1e-6).amsgrad(true));
}

TEST(ElementwiseEquivalence, NegativeControls) {
  const auto zero2 = configuration_of(Strategy::kZero2);
  const Outcome got =
      train_elementwise(elementwise<Own<Belief>>(OwnOptions(0.01)), zero2, 1, at::kFloat);
  EXPECT_NE(bit_differences(got.parameters,
                            plain_loop_of<Own<Belief>>(OwnOptions(0.0101), 1, at::kFloat)),
            "");
  EXPECT_NE(bit_differences(got.parameters,
                            plain_loop_of<torch::optim::AdamW>(AdamWOptions(0.01), 1, at::kFloat)),
            "");
}

}  // namespace
}  // namespace tessera::internal::testing
