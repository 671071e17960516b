#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/lamb_options.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/group_without_windows.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/muon_plan.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/support/plain_lamb.h"
#include "tessera/tests/support/training.h"

// LAMB, alone and together with Muon: all strategies train to ddp's bits and like a plain loop.

namespace tessera::internal::testing {
namespace {

const std::vector<std::string> kLambModels = {"OddMlp",        "TiedMlp",       "FrozenLayers",
                                              "Branches",      "Conv",          "MixedDtypes",
                                              "TinyAndScalar", "EmptyParameter"};

LambOptions lamb() { return LambOptions(0.02); }

Outcome train_by_lamb(const OptimizerPlan& plan, const std::string& model,
                      const Configuration& configuration, const Schedule& schedule, int world,
                      at::ScalarType dtype = at::kFloat, const Decorate& decorate = {}) {
  return train_on_threads(subject(model), dtype, configuration, schedule, world,
                          {.plan = [&plan](const torch::nn::Module&) { return plan; }}, decorate);
}

std::map<std::string, at::Tensor> plain_lamb_loop(const LambOptions& options,
                                                  const Subject& subject, const Schedule& schedule,
                                                  int size, at::ScalarType dtype) {
  return train_plainly(
      subject, dtype, schedule, size, [&](const std::vector<at::Tensor>& parameters) -> PlainStep {
        return [by_lamb = std::make_shared<PlainLamb>(parameters, options)] { by_lamb->step(); };
      });
}

class LambEquivalence : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, LambEquivalence, ::testing::ValuesIn(spanning_worlds()));

TEST_P(LambEquivalence, AllStrategiesTrainToTheBitsOfDdp) {
  size_t turn = 0;
  for (const std::string& model : kLambModels) {
    // Each model takes another schedule and half of the configurations; every second one is narrow.
    const Schedule& schedule = schedules()[turn++ % schedules().size()];
    const auto narrow = [turn, &model](Configuration configuration) {
      if (turn / 2 % 2 == 1 && model != "MixedDtypes") {
        configuration.precision.parameters = at::kBFloat16;
      }
      return configuration;
    };
    const Outcome expected = train_by_lamb(lamb(), model, narrow(configuration_of(Strategy::kDdp)),
                                           schedule, GetParam());
    const std::vector<Configuration> configurations = spanning_configurations(GetParam());
    for (size_t i = turn % 2; i < configurations.size(); i += 2) {
      if (!configurations[i].keeps_bits()) continue;
      EXPECT_EQ(bit_differences(
                    train_by_lamb(lamb(), model, narrow(configurations[i]), schedule, GetParam()),
                    expected),
                "")
          << configurations[i] << " " << model << " " << schedule;
    }
  }
}

TEST_P(LambEquivalence, BesideMuonAllStrategiesTrainToTheBitsOfDdp) {
  const Schedule& schedule = schedule_called("ThriceClipped");
  const OptimizerPlan both = muon_and(lamb(), MuonOptions(0.02));
  const Outcome expected =
      train_by_lamb(both, "OddMlp", configuration_of(Strategy::kDdp), schedule, GetParam());
  for (const Configuration& configuration : spanning_configurations(GetParam())) {
    if (!configuration.keeps_bits()) continue;
    EXPECT_EQ(bit_differences(train_by_lamb(both, "OddMlp", configuration, schedule, GetParam()),
                              expected),
              "")
        << configuration;
  }
  for (const Configuration& configuration : apart_configurations()) {
    const auto without_windows = [](std::shared_ptr<ProcessGroup> world) {
      return std::make_shared<GroupWithoutWindows>(std::move(world));
    };
    EXPECT_EQ(bit_differences(train_by_lamb(both, "OddMlp", configuration, schedule, GetParam(),
                                            at::kFloat, without_windows),
                              expected),
              "")
        << configuration << " without windows";
  }
}

TEST_P(LambEquivalence, TrainsAsAPlainLoopOnAllBatches) {
  size_t turn = 0;
  for (const std::string& model : kLambModels) {
    const Schedule& schedule = schedules()[turn++ % schedules().size()];
    const auto expected =
        plain_lamb_loop(lamb(), subject(model), schedule, GetParam(), at::kDouble);
    for (const Configuration& configuration : named_configurations()) {
      const Outcome got =
          train_by_lamb(lamb(), model, configuration, schedule, GetParam(), at::kDouble);
      EXPECT_EQ(differences(got.parameters, expected, subject(model).tolerance), "")
          << configuration << " " << model << " " << schedule;
    }
  }
  const Schedule& once = schedule_called("Once");
  EXPECT_EQ(differences(
                train_by_lamb(lamb(), "OddMlp", configuration_of(Strategy::kDdp), once, GetParam())
                    .parameters,
                plain_lamb_loop(lamb(), subject("OddMlp"), once, GetParam(), at::kFloat), 1e-5),
            "");
}

TEST(LambEquivalenceNegativeControl, OtherOptionsTrainOtherwise) {
  const Schedule& once = schedule_called("Once");
  const Outcome got =
      train_by_lamb(lamb(), "OddMlp", configuration_of(Strategy::kZero2), once, 2, at::kDouble);
  const auto differ = [&](const LambOptions& options) {
    const auto plain = plain_lamb_loop(options, subject("OddMlp"), once, 2, at::kDouble);
    return !differences(got.parameters, plain, subject("OddMlp").tolerance).empty();
  };
  EXPECT_FALSE(differ(lamb()));
  EXPECT_TRUE(differ(lamb().lr(0.0200001)));
  EXPECT_TRUE(differ(lamb().betas({0.9, 0.99901})));
  EXPECT_TRUE(differ(lamb().betas({0.901, 0.999})));
  EXPECT_TRUE(differ(lamb().eps(1e-5)));
  EXPECT_TRUE(differ(lamb().weight_decay(0.0101)));
}

}  // namespace
}  // namespace tessera::internal::testing
