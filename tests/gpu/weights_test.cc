// Losses with weights on GPUs train as on the CPU, both if step() decides on the device and if the
// host updates (offload). They are refused if steps are asynchronous. The same holds for loops over
// join().
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/tests/gpu/gpu_comparison.h"
#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

/// The loss is already scaled.
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
                HasSubstr("backward with a weight: got Options::asynchronous_step"));
    loss.backward();
  };
  train_on_threads(subject("OddMlp"), at::kFloat, configuration_of(Strategy::kZero1),
                   schedule_called("Once"), std::min(2, most_rank_threads()), refused,
                   staged_over_host());
}

/// Rank r has 3 - r batches. Returns rank 0's parameters.
std::map<std::string, at::Tensor> train_uneven(const Configuration& configuration, int size,
                                               const Decorate& over) {
  std::map<std::string, at::Tensor> parameters;
  run_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
    const int rank = world->rank();
    if (over) world = over(std::move(world));
    const std::shared_ptr<Net> net = prepare(subject("OddMlp").make(), at::kFloat, kModelSeed);
    net->to(world->device());
    const std::unique_ptr<Engine> engine =
        parallelize(net, make_plan(*net), options_of(configuration), world);
    std::vector<int> batches;
    for (int i = rank; i < 3; ++i) batches.push_back(i);
    for (const int batch : engine->join(batches)) {
      const Batch drawn =
          batch_of(subject("OddMlp"), at::kFloat, schedule_called("Once"), {batch, rank}, 0);
      const at::Tensor output = net->forward(drawn.input.to(world->device()), {batch, rank});
      at::mse_loss(output, drawn.target.to(world->device())).backward();
      engine->step();
    }
    const auto whole = engine->full_parameters();
    if (rank == 0) parameters = copy_parameters(*net);
  });
  return parameters;
}

TEST(JoinOnGpu, TrainsAsOnTheCpu) {
  const int world = std::min(3, most_rank_threads());
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2}) {
    Configuration configuration = configuration_of(strategy);
    Outcome expected, got;
    expected.parameters = train_uneven(configuration, world, {});
    configuration.asynchronous_step = false;
    got.parameters = train_uneven(configuration, world, staged_over_host());
    EXPECT_EQ(gpu_differences(got, expected), "") << configuration;
  }
}

TEST(JoinOnGpu, WhatARankWithoutBatchesCannotFollowIsRefused) {
  constexpr int kWorld = 2;
  if (kWorld > most_rank_threads()) GTEST_SKIP() << "needs " << kWorld << " GPUs";
  const auto refusal = [&](const Configuration& configuration) {
    return message_of([&] { train_uneven(configuration, kWorld, staged_over_host()); });
  };
  EXPECT_THAT(refusal(configuration_of(Strategy::kZero1)),
              HasSubstr("join: got Options::asynchronous_step"));
  Configuration split = configuration_of(Strategy::kZero3);
  split.asynchronous_step = false;
  EXPECT_THAT(refusal(split), HasSubstr("join: got split parameters that ranks gather together"));
}

}  // namespace
}  // namespace tessera::internal::testing
