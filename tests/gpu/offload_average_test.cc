// Options::average together with Options::offload: the host keeps the average, and can put it into
// the device's parameters.
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/same_bits.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<Configuration> averaging_on_hosts() {
  std::vector<Configuration> configurations;
  const auto add = [&](Configuration configuration, Offload offload, bool is_narrow) {
    configuration.name += "_" + std::string(to_string(offload)) + (is_narrow ? "_Bf16" : "");
    configuration.offload = offload;
    configuration.poison_freed = true;
    configuration.average = WeightAverage{.decay = 0.75};
    if (is_narrow) configuration.precision.parameters = at::kBFloat16;
    configurations.push_back(std::move(configuration));
  };
  for (const bool is_narrow : {false, true}) {
    for (const Configuration& configuration : named_configurations()) {
      add(configuration, Offload::kOptimizer, is_narrow);
    }
    add(configuration_of(Strategy::kZero3), Offload::kParameters, is_narrow);
  }
  return configurations;
}

class OffloadedAverages : public ::testing::TestWithParam<std::tuple<Configuration, int>> {};
INSTANTIATE_TEST_SUITE_P(Strategies, OffloadedAverages,
                         ::testing::Combine(::testing::ValuesIn(averaging_on_hosts()),
                                            ::testing::Values(1, 3)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_World" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST_P(OffloadedAverages, AreKeptByTheHostAndShownByTheDevice) {
  const auto& [configuration, world] = GetParam();
  if (world > most_rank_threads()) GTEST_SKIP() << "needs " << world << " GPUs";
  std::vector<std::map<std::string, at::Tensor>> averages(static_cast<size_t>(world));
  const auto check = [&averages](Engine& engine, int step) {
    auto& expected = averages[static_cast<size_t>(engine.group().rank())];
    const StateDict state = engine.state_dict(StateScope::kEveryRank);
    for (const Parameter& parameter : engine.parameters()) {
      const std::string entry = "optimizer." + parameter.name;
      const bool has_master = state.entries.contains(entry + ".master");
      const at::Tensor live =
          state.entries.at(has_master ? entry + ".master" : "model." + parameter.name).tensor();
      at::Tensor& average = expected[parameter.name];
      average = step == 0 ? live.clone() : average * 0.75 + live * 0.25;
      EXPECT_TRUE(have_same_bits(state.entries.at(entry + ".average").tensor(), average)) << entry;
    }
    const MemoryBytes predicted = predicted_memory(engine, 1);
    EXPECT_EQ(engine.memory().now()[MemoryClass::kHost], predicted[MemoryClass::kHost]);
    EXPECT_EQ(engine.memory().now()[MemoryClass::kOptimizer], 0);

    Engine::AverageScope scope = engine.begin_average();
    {
      const auto whole = engine.full_parameters();
      for (const Parameter& parameter : engine.parameters()) {
        EXPECT_TRUE(have_same_bits(parameter.tensor,
                                   expected.at(parameter.name).to(parameter.tensor.scalar_type())))
            << parameter.name;
      }
    }
    scope.end();
    EXPECT_EQ(bit_differences(engine.state_dict(StateScope::kEveryRank), state), "");
  };
  train_on_threads(subject("OddMlp"), at::kFloat, configuration,
                   {.name = "", .steps = 3, .bucket_bytes = 1024}, world, {.after_step = check},
                   staged_over_host());
}

TEST(AveragesOnADevice, AreRefusedByNameWhereItUpdates) {
  Configuration configuration = configuration_of(Strategy::kDdp);
  configuration.average = WeightAverage{};
  EXPECT_THAT(
      [&] {
        train_on_threads(subject("OddMlp"), at::kFloat, configuration, {.name = ""}, 1, {},
                         staged_over_host());
      },
      ThrowsMessage<std::exception>(
          HasSubstr("average: is set, but the parameters are updated on a GPU")));
}

}  // namespace
}  // namespace tessera::internal::testing
