// Losses with weights on GPUs: what the CPU makes of them, where step() decides on the device and
// where the host updates (offload); refused where steps are asynchronous.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/gpu/gpu_comparison.h"
#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

/// The loss is scaled already.
TrainOptions weighing() {
  return {.adjust = [](Options& options) { options.loss_scale = LossScale{.initial = 1024.0}; },
          .backward =
              [](Engine& engine, const torch::nn::Module&, const at::Tensor& loss) {
                engine.backward(loss / engine.loss_scale(),
                                {.weight = 1 + 2 * engine.group().rank()});
              }};
}

TEST(WeightsOnGpu, TrainAsOnTheCpu) {
  const int world = std::min(3, most_rank_threads());
  for (Configuration configuration : named_configurations()) {
    for (const std::string name : {"OnceClipped", "ThriceNoSync"}) {
      const auto train_here = [&](const Decorate& over) {
        return train_on_threads(subject("UnusedEverywhere"), at::kFloat, configuration,
                                schedule_called(name), world, weighing(), over);
      };
      const Outcome expected = train_here({});
      configuration.asynchronous_step = false;
      EXPECT_EQ(gpu_differences(train_here(staged_over_host()), expected), "")
          << configuration << " " << name;
      configuration.asynchronous_step.reset();
      configuration.offload = Offload::kOptimizer;
      EXPECT_EQ(gpu_differences(train_here(over_nccl()), expected), "")
          << configuration << " " << name << " offloaded";
      configuration.offload = Offload::kNone;
    }
  }
}

TEST(WeightsOnGpu, AreRefusedUnderAsynchronousSteps) {
  TrainOptions refused;
  refused.backward = [](Engine& engine, const torch::nn::Module&, const at::Tensor& loss) {
    EXPECT_THAT(message_of([&] { engine.backward(loss, {.weight = 2}); }),
                HasSubstr("got a weight under Options::asynchronous_step"));
    loss.backward();
  };
  train_on_threads(subject("OddMlp"), at::kFloat, configuration_of(Strategy::kZero1),
                   schedule_called("Once"), std::min(2, most_rank_threads()), refused,
                   staged_over_host());
}

}  // namespace
}  // namespace tessera::internal::testing
