// The engine trains to the same result on GPUs as on the CPU, under every strategy. With the fakes
// to the bit, because their operators are the CPU's.
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/tests/gpu/gpu_comparison.h"
#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

/// How ranks communicate.
enum class Over : uint8_t { kNothing, kHost, kNccl };

Decorate decorate(Over over) {
  switch (over) {
    case Over::kNothing:
      return alone();
    case Over::kHost:
      return staged_over_host();
    case Over::kNccl:
      return over_nccl();
  }
  throw std::out_of_range("no such world");
}

using EngineCase =
    std::tuple<Configuration, Over, int /*world*/, std::string /*model*/, std::string /*schedule*/>;

std::string name_of(const ::testing::TestParamInfo<EngineCase>& info) {
  const auto& [configuration, over, world, model, schedule] = info.param;
  const std::string by = over == Over::kNothing ? "Alone" : over == Over::kHost ? "Staged" : "Nccl";
  return configuration.name + "_" + by + std::to_string(world) + "_" + model + "_" + schedule;
}

class EngineOnGpu : public ::testing::TestWithParam<EngineCase> {};

TEST_P(EngineOnGpu, TrainsAsOnTheCpu) {
  const auto& [given, over, world, model, name] = GetParam();
  if (world > most_rank_threads()) GTEST_SKIP() << "needs " << world << " GPUs";
  const Schedule& schedule = schedule_called(name);
  Configuration on_cpu = given;
  on_cpu.asynchronous_step = {};
  const Outcome expected = train_on_threads(subject(model), at::kFloat, on_cpu, schedule, world);
  Configuration configuration = given;
  configuration.poison_freed = true;
  const Outcome outcome = train_on_threads(subject(model), at::kFloat, configuration, schedule,
                                           world, {}, decorate(over));
  EXPECT_EQ(gpu_differences(outcome, expected), "");
}

Configuration waiting(Configuration configuration) {
  configuration.name += "_waiting";
  configuration.asynchronous_step = false;
  return configuration;
}

std::vector<Configuration> late_and_waiting() {
  std::vector<Configuration> configurations;
  for (const Configuration& configuration : named_configurations()) {
    configurations.push_back(configuration);
    configurations.push_back(waiting(configuration));
  }
  return configurations;
}

const std::vector<std::string> kSchedules = {"OnceClipped", "ThriceClipped", "ThriceNoSync"};

INSTANTIATE_TEST_SUITE_P(Alone, EngineOnGpu,
                         ::testing::Combine(::testing::ValuesIn(late_and_waiting()),
                                            ::testing::Values(Over::kNothing), ::testing::Values(1),
                                            ::testing::Values("UnusedEverywhere"),
                                            ::testing::ValuesIn(kSchedules)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Strategies, EngineOnGpu,
                         ::testing::Combine(::testing::ValuesIn(late_and_waiting()),
                                            ::testing::Values(Over::kHost, Over::kNccl),
                                            ::testing::ValuesIn(spanning_sizes({1, 2, 3})),
                                            ::testing::Values("UnusedEverywhere"),
                                            ::testing::ValuesIn(kSchedules)),
                         name_of);
/// More units than buffers, and units that other units need in between.
INSTANTIATE_TEST_SUITE_P(
    Units, EngineOnGpu,
    ::testing::Combine(
        ::testing::Values(configuration_of(Strategy::kZero3),
                          hostile(configuration_of(Strategy::kZero3)), resharding(1)),
        ::testing::Values(Over::kHost, Over::kNccl), ::testing::Values(3),
        ::testing::Values("DeepMlp", "TiedMlp", "CalledTwice", "Blocks", "FrozenLayers"),
        ::testing::Values("ThriceClipped")),
    name_of);
/// A second gradient within one backward, during which ranks communicate.
INSTANTIATE_TEST_SUITE_P(
    Recomputed, EngineOnGpu,
    ::testing::Combine(::testing::Values(waiting(configuration_of(Strategy::kDdp)),
                                         waiting(configuration_of(Strategy::kZero3))),
                       ::testing::Values(Over::kHost, Over::kNccl), ::testing::Values(3),
                       ::testing::Values("CheckpointedTwice"), ::testing::Values("ThriceClipped")),
    name_of);
/// Each rank takes its own branches, for configurations with resident parameters.
INSTANTIATE_TEST_SUITE_P(Branches, EngineOnGpu,
                         ::testing::Combine(::testing::Values(configuration_of(Strategy::kDdp),
                                                              configuration_of(Strategy::kZero1),
                                                              configuration_of(Strategy::kZero2)),
                                            ::testing::Values(Over::kHost, Over::kNccl),
                                            ::testing::Values(3), ::testing::Values("Branches"),
                                            ::testing::Values("OnceClipped")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(
    Hybrids, EngineOnGpu,
    ::testing::Combine(::testing::Values(hybrid(2, 2, 2), hybrid(1, 2, 4), hybrid(1, 1, 2)),
                       ::testing::Values(Over::kHost, Over::kNccl), ::testing::Values(4),
                       ::testing::Values("UnusedEverywhere"), ::testing::Values("ThriceClipped")),
    name_of);

/// Operators dispatch by the key set, so a gradient with the CPU's key would be read by CPU
/// kernels.
TEST(DotGradOnGpu, HasTheKeyOfItsDevice) {
  run_ranks(1, [](std::shared_ptr<ProcessGroup> world) {
    world = alone()(std::move(world));
    torch::nn::Linear net(3, 2);
    net->to(world->device());
    const auto engine =
        parallelize(net.ptr(), torch::optim::SGDOptions(0.1), {.strategy = Strategy::kDdp}, world);
    net->forward(at::ones({4, 3}, world->device())).sum().backward();
    const at::Tensor grad = net->weight.grad();
    EXPECT_EQ(grad.device(), world->device());
    EXPECT_TRUE(grad.is_cuda());
    EXPECT_TRUE(grad.key_set().has_backend(c10::BackendComponent::CUDABit));
    EXPECT_TRUE(at::equal((grad * 2).cpu(), at::full({2, 3}, 8.0F)));
    engine->step();
  });
}

}  // namespace
}  // namespace tessera::internal::testing
