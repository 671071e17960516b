// Every algorithm that has kernels, alone and several in one plan, trains to the same result on
// GPUs as on the CPU.
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "tessera/lion_options.h"
#include "tessera/tests/gpu/gpu_comparison.h"
#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

std::vector<OptimizerPlan> plans_with_kernels() {
  using torch::optim::AdagradOptions;
  using torch::optim::AdamOptions;
  using torch::optim::AdamWOptions;
  using torch::optim::RMSpropOptions;
  using torch::optim::SGDOptions;
  const auto is_bias = [](std::string_view name) { return name.ends_with("bias"); };
  return {AdamWOptions(0.01).amsgrad(true),
          AdamOptions(0.01).weight_decay(0.1),
          SGDOptions(0.1).momentum(0.9).nesterov(true),
          LionOptions(0.003),
          AdagradOptions(0.05).initial_accumulator_value(0.1),
          RMSpropOptions(0.01).centered(true).momentum(0.5),
          {AdamWOptions(0.01), {{"biases", is_bias, SGDOptions(0.1).momentum(0.9)}}}};
}

Outcome train_by(const OptimizerPlan& plan, const Configuration& configuration, int world,
                 const Decorate& decorate = {}) {
  TrainOptions options;
  options.plan = [&plan](const torch::nn::Module&) { return plan; };
  return train_on_threads(subject("UnusedEverywhere"), at::kFloat, configuration,
                          schedule_called("OnceClipped"), world, options, decorate);
}

TEST(AlgorithmsOnGpu, TrainAsOnTheCpu) {
  for (const OptimizerPlan& plan : plans_with_kernels()) {
    for (const auto& [strategy, world] :
         {std::pair{Strategy::kDdp, 2}, {Strategy::kZero2, 3}, {Strategy::kZero3, 2}}) {
      if (world > most_rank_threads()) GTEST_SKIP() << "needs " << world << " GPUs";
      const Configuration configuration = configuration_of(strategy);
      const Outcome expected = train_by(plan, configuration, world);
      const Outcome outcome = train_by(plan, configuration, world, staged_over_host());
      EXPECT_EQ(gpu_differences(outcome, expected), "")
          << plan.lines()[0] << " under " << configuration.name;
    }
  }
}

TEST(AlgorithmsOnGpu, NegativeControlAnotherMomentumIsNoticed) {
  if (most_rank_threads() < 2) GTEST_SKIP() << "needs 2 GPUs";
  const Configuration zero2 = configuration_of(Strategy::kZero2);
  const Outcome expected = train_by(torch::optim::SGDOptions(0.1).momentum(0.9), zero2, 2);
  const Outcome outcome =
      train_by(torch::optim::SGDOptions(0.1).momentum(0.8), zero2, 2, staged_over_host());
  EXPECT_NE(gpu_differences(outcome, expected), "");
}

}  // namespace
}  // namespace tessera::internal::testing
