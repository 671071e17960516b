// The whole engine over the nccl group, with the fake NCCL and delayed lanes: the bits of the same
// configurations over shared memory. The fake sums in rank order, so any difference is the
// engine's.
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/core/comm/nccl/nccl_ranks.h"
#include "tessera/tests/cuda_host/nccl_worlds.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

/// Clipped, with one micro-step and with three; and with gradients added locally.
const std::vector<std::string> kSchedules = {"OnceClipped", "ThriceClipped", "ThriceNoSync"};

Outcome train_over_nccl(const Configuration& configuration, const std::string& model,
                        const Schedule& schedule, int world, const TrainOptions& options = {},
                        const NcclWorldOptions& nccl = {}) {
  Configuration poisoned = configuration;
  poisoned.poison_freed = true;
  const Outcome outcome = train_on_threads(subject(model), at::kFloat, poisoned, schedule, world,
                                           options, over_nccl(nccl));
  await_no_communicators();
  return outcome;
}

using Case =
    std::tuple<Configuration, int /*world*/, std::string /*model*/, std::string /*schedule*/>;

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const auto& [configuration, world, model, schedule] = info.param;
  return configuration.name + "_World" + std::to_string(world) + "_" + model + "_" + schedule;
}

class EngineOverNccl : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { fake().reset(); }
};

TEST_P(EngineOverNccl, TrainsToTheBitsOfSharedMemory) {
  const auto& [configuration, world, model, name] = GetParam();
  const Schedule& schedule = schedule_called(name);
  const Outcome expected =
      train_on_threads(subject(model), at::kFloat, configuration, schedule, world);
  EXPECT_EQ(bit_differences(train_over_nccl(configuration, model, schedule, world), expected), "");
}

/// Odd sizes and unused parameters, everywhere.
INSTANTIATE_TEST_SUITE_P(Strategies, EngineOverNccl,
                         ::testing::Combine(::testing::ValuesIn(named_configurations()),
                                            ::testing::ValuesIn(spanning_sizes({1, 2, 3})),
                                            ::testing::Values("UnusedEverywhere"),
                                            ::testing::ValuesIn(kSchedules)),
                         name_of);
/// Units that are used between other units' uses, and more units than buffers.
INSTANTIATE_TEST_SUITE_P(
    Units, EngineOverNccl,
    ::testing::Combine(::testing::Values(configuration_of(Strategy::kZero3),
                                         hostile(configuration_of(Strategy::kZero3)),
                                         resharding(1)),
                       ::testing::Values(3),
                       ::testing::Values("DeepMlp", "TiedMlp", "CalledTwice", "Blocks",
                                         "CheckpointedTwice", "FrozenLayers", "MixedDtypes"),
                       ::testing::Values("ThriceClipped")),
    name_of);
/// Branches that differ by rank, which need resident parameters.
INSTANTIATE_TEST_SUITE_P(Branches, EngineOverNccl,
                         ::testing::Combine(::testing::Values(configuration_of(Strategy::kDdp),
                                                              configuration_of(Strategy::kZero1),
                                                              configuration_of(Strategy::kZero2)),
                                            ::testing::Values(3), ::testing::Values("Branches"),
                                            ::testing::Values("OnceClipped")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(
    Hybrids, EngineOverNccl,
    ::testing::Combine(::testing::Values(hybrid(2, 2, 2), hybrid(1, 2, 4), hybrid(1, 1, 2)),
                       ::testing::Values(4), ::testing::Values("UnusedEverywhere"),
                       ::testing::Values("ThriceClipped")),
    name_of);

Configuration early(Configuration configuration) {
  configuration.name += "_early";
  configuration.optimizer_in_backward = true;
  return configuration;
}
INSTANTIATE_TEST_SUITE_P(
    UpdateInBackward, EngineOverNccl,
    ::testing::Combine(::testing::Values(early(configuration_of(Strategy::kZero2)),
                                         early(configuration_of(Strategy::kZero3))),
                       ::testing::Values(3), ::testing::Values("UnusedEverywhere"),
                       ::testing::Values("Once")),
    name_of);

class EngineReads : public ::testing::Test {
 protected:
  void SetUp() override { fake().reset(); }
};

/// What users see on every rank: gradients after each backward (if the configuration shows them)
/// and parameters after each step.
using Seen = std::map<std::string, at::Tensor>;

TrainOptions look(std::vector<Seen>& seen, bool at_gradients) {
  TrainOptions options;
  options.after_step = [&seen](Engine& engine, int step) {
    for (const Parameter& parameter : engine.parameters()) {
      seen[engine.group().rank()][parameter.name + " after step " + std::to_string(step)] =
          parameter.tensor.detach().clone();
    }
  };
  if (!at_gradients) return options;
  options.after_backward = [&seen](Engine& engine, int step) {
    for (const Parameter& parameter : engine.parameters()) {
      if (!parameter.tensor.grad().defined()) continue;
      seen[engine.group().rank()]["gradient of " + parameter.name + ", step " +
                                  std::to_string(step)] = parameter.tensor.grad().clone();
    }
  };
  return options;
}

TEST_F(EngineReads, FindGradientsAndParametersThere) {
  constexpr int kWorld = 3;
  const Schedule& schedule = schedule_called("OnceClipped");
  for (const Configuration& configuration : named_configurations()) {
    const bool at_gradients = configuration.strategy == Strategy::kDdp;
    std::vector<Seen> expected(kWorld);
    train_on_threads(subject("UnusedEverywhere"), at::kFloat, configuration, schedule, kWorld,
                     look(expected, at_gradients));
    std::vector<Seen> seen(kWorld);
    train_over_nccl(configuration, "UnusedEverywhere", schedule, kWorld, look(seen, at_gradients),
                    {.longest_delay = std::chrono::milliseconds(2)});
    // Two layers with gradients, in four steps; and all parameters.
    EXPECT_GE(expected[0].size(), at_gradients ? 48u : 32u) << configuration;
    for (int rank = 0; rank < kWorld; ++rank) {
      EXPECT_EQ(bit_differences(seen[rank], expected[rank]), "")
          << configuration << ", rank " << rank;
    }
  }
}

/// After the last step: the results of every collective call of the engine.
struct Answers {
  std::vector<uint64_t> hashes;
  Seen parameters;
  Seen state;

  void ask(Engine& engine) {
    hashes.push_back(parameter_hash(engine));
    engine.modify_parameters(1, [&] {
      for (const Parameter& parameter : engine.parameters()) parameter.tensor.mul_(2.0);
    });
    hashes.push_back(parameter_hash(engine));
    const StateDict saved = engine.state_dict(StateScope::kEveryRank, 0);
    engine.modify_parameters(0, [&] {
      for (const Parameter& parameter : engine.parameters()) parameter.tensor.zero_();
    });
    hashes.push_back(parameter_hash(engine));
    engine.load_state_dict(saved);
    hashes.push_back(parameter_hash(engine));
    for (const auto& [name, entry] : saved.entries) {
      for (const StatePiece& piece : entry.pieces) state[name] = piece.values;
    }
    const auto whole = engine.full_parameters();
    for (const Parameter& parameter : engine.parameters()) {
      parameters[parameter.name] = parameter.tensor.detach().clone();
    }
  }
};

TEST_F(EngineReads, FindTheSameInEveryOtherCall) {
  constexpr int kWorld = 3;
  const Schedule& schedule = schedule_called("OnceClipped");
  for (const Configuration& configuration : named_configurations()) {
    const auto ask = [&](std::vector<Answers>& answers) {
      TrainOptions options;
      options.after_step = [&](Engine& engine, int step) {
        if (step + 1 == schedule.steps) answers[engine.group().rank()].ask(engine);
      };
      return options;
    };
    std::vector<Answers> expected(kWorld);
    train_on_threads(subject("UnusedEverywhere"), at::kFloat, configuration, schedule, kWorld,
                     ask(expected));
    std::vector<Answers> got(kWorld);
    train_over_nccl(configuration, "UnusedEverywhere", schedule, kWorld, ask(got));
    for (int rank = 0; rank < kWorld; ++rank) {
      EXPECT_EQ(got[rank].hashes, expected[rank].hashes) << configuration << ", rank " << rank;
      EXPECT_EQ(bit_differences(got[rank].parameters, expected[rank].parameters), "")
          << configuration;
      EXPECT_EQ(bit_differences(got[rank].state, expected[rank].state), "") << configuration;
      EXPECT_EQ(got[rank].hashes[1], got[rank].hashes[3]) << configuration;
      EXPECT_NE(got[rank].hashes[1], got[rank].hashes[2]) << configuration;
      EXPECT_GT(got[rank].state.size(), 8u) << configuration;
    }
  }
}

/// Negative control of all of the above: a single missing wait is noticed.
TEST_F(EngineReads, ShowEveryWaitThatIsMissing) {
  constexpr int kWorld = 3;
  const Schedule& schedule = schedule_called("OnceClipped");
  const std::vector<std::pair<Strategy, Op>> breaks = {
      {Strategy::kDdp, Op::kAllReduce},   {Strategy::kZero1, Op::kReduceScatter},
      {Strategy::kZero1, Op::kAllGather}, {Strategy::kZero2, Op::kReduceScatter},
      {Strategy::kZero2, Op::kAllGather}, {Strategy::kZero3, Op::kReduceScatter},
      {Strategy::kZero3, Op::kAllGather},
  };
  for (const auto& [strategy, what] : breaks) {
    Configuration configuration = configuration_of(strategy);
    const Outcome expected =
        train_on_threads(subject("UnusedEverywhere"), at::kFloat, configuration, schedule, kWorld);
    configuration.poison_freed = true;
    std::string outcome;
    try {
      const Decorate make = over_nccl({.longest_delay = std::chrono::milliseconds(5)});
      outcome = bit_differences(
          train_on_threads(subject("UnusedEverywhere"), at::kFloat, configuration, schedule, kWorld,
                           {},
                           [&, what = what](std::shared_ptr<ProcessGroup> world) {
                             return std::make_shared<ForgetfulGroup>(make(std::move(world)), what);
                           }),
          expected);
    } catch (const std::runtime_error& error) {
      outcome = error.what();
    }
    await_no_communicators();
    EXPECT_NE(outcome, "") << configuration << " without a wait for " << static_cast<int>(what);
  }
}

/// Small all-gathers, texts and fingerprints use the host's channel; only gradients and parameters
/// use NCCL.
TEST_F(EngineReads, LeaveWordsOfTheHostToTheControlChannel) {
  for (const Configuration& configuration : named_configurations()) {
    fake().reset();
    train_over_nccl(configuration, "UnusedEverywhere", schedule_called("ThriceClipped"), 3);
    int collectives = 0;
    for (const FakeCall& call : fake().calls()) {
      if (call.dtype < 0 || call.function == "ncclBroadcast") continue;
      ++collectives;
      EXPECT_EQ(call.dtype, static_cast<int>(nccl::DataType::kFloat32))
          << configuration << ": " << call.function << " on " << call.communicator;
    }
    EXPECT_GT(collectives, 0);
  }
}

}  // namespace
}  // namespace tessera::internal::testing
