#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/given_gradients.h"
#include "tessera/tests/support/group_without_windows.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/muon_plan.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/support/plain_muon.h"
#include "tessera/tests/support/training.h"
#include "tessera/torch_elementwise.h"

// Muon for matrices and AdamW for the rest: all strategies train to the bits of ddp, where each
// rank transforms whole matrices alone, and like a plain loop with torch.optim.Muon's operators.

namespace tessera::internal::testing {
namespace {

using torch::optim::AdamWOptions;

/// Matrices of odd sizes, tied, frozen, unused by some or all ranks, in memory with gaps, of two
/// dtypes, smaller than the world, without elements.
const std::vector<std::string> kMuonModels = {
    "OddMlp",      "TiedMlp", "FrozenLayers",  "UnusedEverywhere", "Branches",
    "MixedDtypes", "Gapped",  "TinyAndScalar", "EmptyParameter",   "Conv"};

MuonOptions muon() { return MuonOptions(0.02); }
AdamWOptions beside_muon() { return AdamWOptions(0.02).eps(1e-6).weight_decay(0.1); }

/// Uses LibTorch's own AdamW, so that a plain loop can have the same bits.
TrainOptions by_muon(const MuonOptions& options) {
  const OptimizerPlan plan = muon_and(elementwise<torch::optim::AdamW>(beside_muon()), options);
  return {.plan = [plan](const torch::nn::Module&) { return plan; }};
}

Outcome train_by_muon(const MuonOptions& options, const std::string& model,
                      const Configuration& configuration, const Schedule& schedule, int world,
                      at::ScalarType dtype = at::kFloat) {
  return train_on_threads(subject(model), dtype, configuration, schedule, world, by_muon(options));
}

/// One process on the batches of all ranks.
std::map<std::string, at::Tensor> plain_muon_loop(const MuonOptions& options,
                                                  const Subject& subject, const Schedule& schedule,
                                                  int size, at::ScalarType dtype) {
  return train_plainly(
      subject, dtype, schedule, size, [&](const std::vector<at::Tensor>& parameters) -> PlainStep {
        std::vector<at::Tensor> matrices;
        std::vector<at::Tensor> others;
        for (const at::Tensor& parameter : parameters) {
          if (parameter.numel() == 0) continue;
          (parameter.dim() == 2 ? matrices : others).push_back(parameter);
        }
        return [by_muon = std::make_shared<PlainMuon>(matrices, options),
                by_adamw = std::make_shared<torch::optim::AdamW>(others, beside_muon())] {
          by_muon->step();
          by_adamw->step();
        };
      });
}

class MuonEquivalence : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, MuonEquivalence, ::testing::ValuesIn(spanning_worlds()));

TEST_P(MuonEquivalence, AllStrategiesTrainToTheBitsOfDdp) {
  size_t turn = 0;
  for (const std::string& model : kMuonModels) {
    // Each model takes another schedule and half of the configurations.
    const Schedule& schedule = schedules()[turn++ % schedules().size()];
    const Outcome expected =
        train_by_muon(muon(), model, configuration_of(Strategy::kDdp), schedule, GetParam());
    const std::vector<Configuration> configurations = spanning_configurations(GetParam());
    for (size_t i = turn % 2; i < configurations.size(); i += 2) {
      if (!configurations[i].keeps_bits()) continue;
      EXPECT_EQ(
          bit_differences(train_by_muon(muon(), model, configurations[i], schedule, GetParam()),
                          expected),
          "")
          << configurations[i] << " " << model << " " << schedule;
    }
  }
}

TEST_P(MuonEquivalence, AllStrategiesTrainToTheBitsOfDdpInOtherPrecisions) {
  const Schedule& schedule = schedule_called("ThriceClipped");
  for (const bool is_double : {false, true}) {
    const auto narrow = [&](Configuration configuration) {
      if (!is_double) configuration.precision.parameters = at::kBFloat16;
      return configuration;
    };
    const at::ScalarType dtype = is_double ? at::kDouble : at::kFloat;
    const MuonOptions options =
        muon().ns_in_bfloat16(true).adjust_lr(MuonOptions::AdjustLr::kMatchRmsAdamW);
    const Outcome expected = train_by_muon(
        options, "OddMlp", narrow(configuration_of(Strategy::kDdp)), schedule, GetParam(), dtype);
    for (const Configuration& configuration : spanning_configurations(GetParam())) {
      if (!configuration.keeps_bits()) continue;
      EXPECT_EQ(bit_differences(train_by_muon(options, "OddMlp", narrow(configuration), schedule,
                                              GetParam(), dtype),
                                expected),
                "")
          << configuration << " " << dtype;
    }
  }
}

TEST_P(MuonEquivalence, TrainsAsAPlainLoopOnAllBatches) {
  size_t turn = 0;
  for (const std::string& model : kMuonModels) {
    const Schedule& schedule = schedules()[turn++ % schedules().size()];
    const auto expected =
        plain_muon_loop(muon(), subject(model), schedule, GetParam(), at::kDouble);
    for (const Configuration& configuration : named_configurations()) {
      const Outcome got =
          train_by_muon(muon(), model, configuration, schedule, GetParam(), at::kDouble);
      EXPECT_EQ(differences(got.parameters, expected, subject(model).tolerance), "")
          << configuration << " " << model << " " << schedule;
    }
  }
}

/// fp32 differs from the plain loop by rounding; every strategy has equal bits.
TEST_P(MuonEquivalence, TrainsAsAPlainLoopOnAllBatchesInFp32) {
  const Schedule& schedule = schedule_called("ThriceClipped");
  for (const char* const model : {"OddMlp", "TiedMlp"}) {
    const Outcome got =
        train_by_muon(muon(), model, configuration_of(Strategy::kDdp), schedule, GetParam());
    EXPECT_EQ(differences(got.parameters,
                          plain_muon_loop(muon(), subject(model), schedule, GetParam(), at::kFloat),
                          1e-5),
              "")
        << model;
  }
}

TEST(MuonEquivalenceOnOneRank, HasTheBitsOfAPlainLoop) {
  const Schedule& once = schedule_called("Once");
  for (const char* const model : {"OddMlp", "TiedMlp", "FrozenLayers", "TinyAndScalar"}) {
    for (const bool is_narrow : {false, true}) {
      const MuonOptions options = muon().ns_in_bfloat16(is_narrow);
      EXPECT_EQ(
          bit_differences(
              train_by_muon(options, model, configuration_of(Strategy::kZero2), once, 1).parameters,
              plain_muon_loop(options, subject(model), once, 1, at::kFloat)),
          "")
          << model << " " << is_narrow;
    }
  }
}

/// Compares with a hand-written loop over 16-bit parameters and masters.
TEST(MuonEquivalenceOnOneRank, HasTheBitsOfAPlainLoopOverMasters) {
  const Schedule& once = schedule_called("Once");
  const Subject& model = subject("OddMlp");
  const std::shared_ptr<Net> net = prepare(model.make(), at::kFloat, kModelSeed);
  std::vector<at::Tensor> masters;
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> others;
  for (const at::Tensor& parameter : net->parameters()) {
    masters.push_back(parameter.detach().clone());
    (parameter.dim() == 2 ? matrices : others).push_back(masters.back());
  }
  net->to(at::kBFloat16);
  PlainMuon plain(matrices, muon());
  torch::optim::AdamW adamw(others, beside_muon());
  for (int step = 0; step < once.steps; ++step) {
    const Moment moment{.step = step, .rank = 0};
    net->zero_grad();
    loss_of(*net, batch_of(model, at::kBFloat16, once, moment, 0), moment, once).backward();
    const std::vector<at::Tensor> parameters = net->parameters();
    for (size_t i = 0; i < masters.size(); ++i) {
      masters[i].mutable_grad() = parameters[i].grad().to(at::kFloat);
    }
    plain.step();
    adamw.step();
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < masters.size(); ++i) parameters[i].copy_(masters[i]);
  }
  Configuration narrow = configuration_of(Strategy::kZero3);
  narrow.precision.parameters = at::kBFloat16;
  EXPECT_EQ(bit_differences(train_by_muon(muon(), "OddMlp", narrow, once, 1).parameters,
                            copy_parameters(*net)),
            "");
}

/// Directions are then all-gathered.
TEST_P(MuonEquivalence, RanksThatCannotReadEachOthersMemoryTrainTheSame) {
  const Schedule& schedule = schedule_called("Once");
  const auto without_windows = [](std::shared_ptr<ProcessGroup> world) {
    return std::make_shared<GroupWithoutWindows>(std::move(world));
  };
  for (const char* const model : {"OddMlp", "UnusedEverywhere", "MixedDtypes"}) {
    const Outcome expected =
        train_by_muon(muon(), model, configuration_of(Strategy::kDdp), schedule, GetParam());
    for (const Configuration& configuration : spanning_configurations(GetParam())) {
      const auto reshard = configuration.reshard_after_forward;
      if (!configuration.keeps_bits() || (reshard.has_value() && *reshard != 1)) continue;
      if (configuration.shares_parameters) continue;
      EXPECT_EQ(
          bit_differences(train_on_threads(subject(model), at::kFloat, configuration, schedule,
                                           GetParam(), by_muon(muon()), without_windows),
                          expected),
          "")
          << configuration << " " << model;
    }
  }
}

TEST_P(MuonEquivalence, GradientsGivenByHandTrainTheSame) {
  const Schedule& schedule = schedule_called("ThriceClipped");
  const Outcome expected =
      train_by_muon(muon(), "OddMlp", configuration_of(Strategy::kDdp), schedule, GetParam());
  TrainOptions given = by_muon(muon());
  given.backward = [](Engine& engine, const torch::nn::Module&, const at::Tensor& loss) {
    engine.accumulate(gradients_of(engine, loss));
  };
  for (const Configuration& configuration : named_and_apart_configurations()) {
    EXPECT_EQ(bit_differences(train_on_threads(subject("OddMlp"), at::kFloat, configuration,
                                               schedule, GetParam(), given),
                              expected),
              "")
        << configuration;
  }
}

TEST(MuonEquivalenceNegativeControl, OtherOptionsTrainOtherwise) {
  const Configuration zero2 = configuration_of(Strategy::kZero2);
  const Schedule& once = schedule_called("Once");
  const Outcome right = train_by_muon(muon(), "OddMlp", zero2, once, 2);
  EXPECT_EQ(bit_differences(train_by_muon(muon(), "OddMlp", zero2, once, 2), right), "");
  EXPECT_NE(
      bit_differences(train_by_muon(muon().momentum(0.9501), "OddMlp", zero2, once, 2), right), "");
  const Outcome fp64 = train_by_muon(muon(), "OddMlp", zero2, once, 2, at::kDouble);
  const auto plain = plain_muon_loop(muon(), subject("OddMlp"), once, 2, at::kDouble);
  EXPECT_EQ(differences(fp64.parameters, plain, subject("OddMlp").tolerance), "");
  const auto never = plain_muon_loop(muon().ns_steps(0), subject("OddMlp"), once, 2, at::kDouble);
  EXPECT_NE(differences(fp64.parameters, never, subject("OddMlp").tolerance), "");
}

}  // namespace
}  // namespace tessera::internal::testing
