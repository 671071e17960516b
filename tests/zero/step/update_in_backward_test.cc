#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/memory_meter.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/delayed_group.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/zero/engine/engine_fixture.h"

// Options::optimizer_in_backward: the same bits with less memory.

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

Configuration early(Configuration configuration) {
  configuration.name += "_early";
  configuration.optimizer_in_backward = true;
  return configuration;
}

/// One backward per step, no clipping.
Schedule plain_schedule() {
  for (const Schedule& schedule : schedules()) {
    if (schedule.micro_steps == 1 && std::isinf(schedule.max_grad_norm)) return schedule;
  }
  throw std::logic_error("no schedule without accumulation and clipping");
}

/// Configurations that split gradients and the optimizer over `world` ranks.
std::vector<Configuration> configurations_for(int world) {
  Configuration blocks = configuration_of(Strategy::kZero3);
  blocks.name = "zero3_blocks";
  blocks.wrap = Configuration::Wrap::kBlocks;
  std::vector<Configuration> configurations = {
      configuration_of(Strategy::kZero2),          apart(configuration_of(Strategy::kZero2)),
      configuration_of(Strategy::kZero3),          apart(configuration_of(Strategy::kZero3)),
      hostile(configuration_of(Strategy::kZero3)), blocks};
  if (world == 1)
    configurations = {configuration_of(Strategy::kZero2), configuration_of(Strategy::kZero3)};
  if (world == 2) configurations.resize(4);
  if (world == 4) configurations = {hybrid(2, 4, 4)};
  return configurations;
}

struct EarlyUpdateCase {
  Configuration configuration;
  int world;
};

std::vector<EarlyUpdateCase> cases() {
  std::vector<EarlyUpdateCase> all;
  for (const int world : spanning_worlds()) {
    for (const Configuration& configuration : configurations_for(world))
      all.push_back({configuration, world});
  }
  return all;
}

std::string name_of_case(const ::testing::TestParamInfo<EarlyUpdateCase>& info) {
  return info.param.configuration.name + "_World" + std::to_string(info.param.world);
}

class UpdateInBackwardBits : public ::testing::TestWithParam<EarlyUpdateCase> {
 protected:
  static std::string difference(const std::string& model, at::ScalarType dtype,
                                Configuration configuration, const Decorate& decorate = {}) {
    const int world = GetParam().world;
    const Schedule schedule = plain_schedule();
    const Outcome expected =
        train_on_threads(subject(model), dtype, configuration, schedule, world);
    configuration.poison_freed = true;
    const Outcome got = train_on_threads(subject(model), dtype, early(configuration), schedule,
                                         world, {}, decorate);
    return bit_differences(got, expected);
  }
};

TEST_P(UpdateInBackwardBits, AreThoseOfTheStep) {
  size_t turn = GetParam().configuration.name.size();
  for (const Subject& subject : subjects()) {
    // These use a module twice by recomputation, which is refused.
    if (subject.name.starts_with("Checkpointed")) continue;
    if (!has_turn(turn++, 3)) continue;
    EXPECT_EQ(difference(subject.name, at::kFloat, GetParam().configuration), "") << subject.name;
  }
}

TEST_P(UpdateInBackwardBits, AreThoseOfTheStepWithMasters) {
  size_t turn = GetParam().configuration.name.size();
  for (const char* model : {"OddMlp", "Branches", "Blocks", "FrozenBlocks", "UnusedEverywhere"}) {
    if (!has_turn(turn++, 2)) continue;
    Configuration configuration = GetParam().configuration;
    EXPECT_EQ(difference(model, at::kBFloat16, configuration), "") << model;
    configuration.precision.parameters = at::kBFloat16;
    EXPECT_EQ(difference(model, at::kFloat, configuration), "") << model << " converted";
  }
}

TEST_P(UpdateInBackwardBits, AreThoseOfTheStepWhenEveryReductionIsLate) {
  const auto delay = [](std::shared_ptr<ProcessGroup> group) {
    return std::make_shared<DelayedGroup>(
        std::move(group), DelayOptions{.seed = 5, .longest = std::chrono::microseconds(500)});
  };
  for (const char* model : {"OddMlp", "Branches", "RankOrder", "BranchingBlocks"}) {
    EXPECT_EQ(difference(model, at::kFloat, GetParam().configuration, delay), "") << model;
  }
}

INSTANTIATE_TEST_SUITE_P(, UpdateInBackwardBits, ::testing::ValuesIn(cases()), name_of_case);

/// Negative control: the comparison notices a missing step.
TEST(UpdateInBackward, NegativeControlAMissingStepShows) {
  Schedule schedule = plain_schedule();
  const Configuration configuration = early(configuration_of(Strategy::kZero3));
  const Outcome all = train_on_threads(subject("OddMlp"), at::kFloat, configuration, schedule, 2);
  --schedule.steps;
  const Outcome less = train_on_threads(subject("OddMlp"), at::kFloat, configuration, schedule, 2);
  EXPECT_NE(bit_differences(less.parameters, all.parameters), "");
}

/// There are no sums and nothing grows if every parameter has a gradient on every rank.
TEST(UpdateInBackward, KeepsNoGradients) {
  for (const int world : {1, 2, 3}) {
    for (const Configuration& configuration : configurations_for(world)) {
      if (configuration.free_eagerly) continue;
      SCOPED_TRACE(configuration.name);
      std::vector<int64_t> allocations(static_cast<size_t>(world) * 2);
      const auto check = [&](Engine& engine, int step) {
        const MemoryBytes now = engine.memory().now();
        const MemoryBytes predicted = predicted_memory(engine, 1);
        EXPECT_EQ(predicted[MemoryClass::kGradients], 0);
        for (const MemoryClass of : {MemoryClass::kParameters, MemoryClass::kGradients,
                                     MemoryClass::kOptimizer, MemoryClass::kUnshardedParameters}) {
          EXPECT_EQ(now[of], predicted[of]) << to_string(of);
        }
        const auto rank = static_cast<size_t>(engine.group().rank());
        if (step == 1) allocations[2 * rank] = engine.memory().allocations();
        if (step == 3) allocations[2 * rank + 1] = engine.memory().allocations();
      };
      Schedule schedule = plain_schedule();
      schedule.steps = 4;
      schedule.bucket_bytes = 2048;
      train_on_threads(subject("DeepMlp"), at::kFloat, early(configuration), schedule, world,
                       {.after_backward = check, .after_step = check});
      for (size_t rank = 0; rank < static_cast<size_t>(world); ++rank) {
        EXPECT_EQ(allocations[2 * rank], allocations[2 * rank + 1]);
      }
      train_on_threads(subject("DeepMlp"), at::kFloat, configuration, schedule, world,
                       {.after_step = [](Engine& engine, int) {
                         EXPECT_GT(engine.memory().now()[MemoryClass::kGradients], 0);
                       }});
    }
  }
}

/// Only units that lack gradients keep their slice of the sums.
TEST(UpdateInBackward, HasThePeakOfTheFormulaInSixteenBitsToo) {
  for (const int world : {1, 3}) {
    for (Configuration configuration : configurations_for(world)) {
      if (configuration.free_eagerly) continue;
      SCOPED_TRACE(configuration.name);
      configuration.precision.parameters = at::kBFloat16;
      Schedule schedule = plain_schedule();
      schedule.steps = 3;
      schedule.bucket_bytes = 2048;
      train_on_threads(subject("DeepMlp"), at::kFloat, early(configuration), schedule, world,
                       {.after_step = [](Engine& engine, int) {
                         EXPECT_EQ(engine.memory().peak()[MemoryClass::kGradientBuffers],
                                   predicted_peak_memory(engine, 1)[MemoryClass::kGradientBuffers]);
                       }});
    }
  }
}

TEST(UpdateInBackward, KeepsTheSumsOfUnitsThatLackGradients) {
  const auto check = [](Engine& engine, int) {
    int64_t all = 0;
    for (const PlannedUnit& unit : engine.units()) all += unit.layout.bytes();
    const int64_t kept = engine.memory().now()[MemoryClass::kGradients];
    EXPECT_GT(kept, 0);
    EXPECT_LE(kept, all / engine.group().size());
  };
  train_on_threads(subject("UnusedEverywhere"), at::kFloat,
                   early(configuration_of(Strategy::kZero3)), plain_schedule(), 3,
                   {.after_step = check});
}

// --- What is refused ---

/// A rank that updates in backward.
struct EarlyRank : OddRank {
  EarlyRank(std::shared_ptr<ProcessGroup> group, const Configuration& configuration)
      : OddRank(std::move(group), small_options_of(early(configuration))) {}
  double& lr() const {
    return static_cast<torch::optim::AdamWOptions&>(engine->optimizer().param_groups()[0].options())
        .lr();
  }
};

class UpdateInBackwardMisuse : public ::testing::TestWithParam<EarlyUpdateCase> {
 protected:
  static void on_ranks(const std::function<void(EarlyRank&)>& body) {
    run_ranks(GetParam().world, [&](std::shared_ptr<ProcessGroup> world) {
      EarlyRank rank(std::move(world), GetParam().configuration);
      body(rank);
    });
  }
  /// The hash after `steps` plain steps.
  static uint64_t hash_after(const std::shared_ptr<ProcessGroup>& world, int steps) {
    EarlyRank rank(world, GetParam().configuration);
    for (int step = 0; step < steps; ++step) {
      rank.backward(step);
      rank.engine->step();
    }
    return parameter_hash(*rank.engine);
  }
};

using UpdateInBackwardMisuseAmongRanks = UpdateInBackwardMisuse;

TEST_P(UpdateInBackwardMisuse, ASecondBackwardIsRefusedAndTheFirstStays) {
  on_ranks([](EarlyRank& rank) {
    // It reads no parameter, so only the count of backwards is in its way.
    const at::Tensor second = rank.engine->parameters()[0].tensor.sum();
    rank.backward(0);
    EXPECT_THAT(message_of([&] { second.backward(); }),
                AllOf(HasSubstr(rank.world->size() > 1 ? "[step] all ranks" : "[step] rank 0"),
                      HasSubstr("a second time before step()"),
                      HasSubstr("What backward has updated takes effect in a step()")));
    EXPECT_EQ(rank.engine->step().step, 1);
    EXPECT_EQ(parameter_hash(*rank.engine), hash_after(rank.world, 1));
  });
}

TEST_P(UpdateInBackwardMisuse, NoSyncIsRefusedAndNothingHasHappened) {
  on_ranks([](EarlyRank& rank) {
    {
      const auto no_sync = rank.engine->no_sync();
      EXPECT_THAT(message_of([&] { rank.backward(0); }),
                  AllOf(HasSubstr("inside no_sync()"), HasSubstr("Nothing was applied")));
    }
    rank.backward(0);
    rank.engine->step();
    EXPECT_EQ(parameter_hash(*rank.engine), hash_after(rank.world, 1));
  });
}

TEST_P(UpdateInBackwardMisuse, NothingElseComesBetweenBackwardAndStep) {
  on_ranks([](EarlyRank& rank) {
    rank.backward(0);
    Engine& engine = *rank.engine;
    const std::map<std::string, std::function<void()>> calls = {
        {"zero_grad", [&] { engine.zero_grad(); }},
        {"modify_parameters", [&] { engine.modify_parameters(0, [] {}); }},
        {"full_parameters", [&] { auto scope = engine.full_parameters(); }},
        {"gather", [&] { auto scope = engine.gather(*rank.net); }},
        {"parameter_hash", [&] { parameter_hash(engine); }},
        {"state_dict", [&] { (void)engine.state_dict(StateScope::kSharded); }}};
    for (const auto& [name, call] : calls) {
      EXPECT_THAT(message_of(call),
                  HasSubstr("[engine] " + name + ": called between the first gradient"));
    }
    EXPECT_THAT(message_of([&] { loss_on(*rank.net, 0, 1); }),
                AllOf(HasSubstr("[zero] unit"), HasSubstr("backward has updated it"),
                      HasSubstr("before engine->step()")));
    for (const Parameter& parameter : engine.parameters()) parameter.tensor.mutable_grad().reset();
    EXPECT_THAT(message_of([&] { engine.step(); }), HasSubstr("after backward had applied it"));
  });
}

TEST_P(UpdateInBackwardMisuseAmongRanks, HyperParametersAreComparedBeforeAnythingIsUpdated) {
  on_ranks([](EarlyRank& rank) {
    const double before = rank.lr();
    if (rank.world->rank() == 1) rank.lr() = 0.5;
    EXPECT_THAT(
        message_of([&] { rank.backward(0); }),
        AllOf(HasSubstr("hyper-parameter defaults: lr differs"), HasSubstr("Nothing was applied")));
    rank.lr() = before;
    rank.backward(0);
    rank.engine->step();
    EXPECT_EQ(parameter_hash(*rank.engine), hash_after(rank.world, 1));
  });
}

TEST_P(UpdateInBackwardMisuse, HyperParametersStayUntilTheStep) {
  on_ranks([](EarlyRank& rank) {
    rank.backward(0);
    const double before = rank.lr();
    if (rank.world->rank() == 0) rank.lr() = 0.5;
    EXPECT_THAT(message_of([&] { rank.engine->step(); }),
                AllOf(HasSubstr("[step] rank 0: hyper-parameter defaults: lr was changed after"),
                      HasSubstr("What backward has updated takes effect in a step()")));
    rank.lr() = before;
    EXPECT_TRUE(rank.engine->step().committed);
    EXPECT_EQ(parameter_hash(*rank.engine), hash_after(rank.world, 1));
  });
}

TEST_P(UpdateInBackwardMisuse, NonFiniteGradientsReachNoParameterAndAStateMendsTheRest) {
  on_ranks([](EarlyRank& rank) {
    Engine& engine = *rank.engine;
    rank.backward(0);
    engine.step();
    const StateDict state = engine.state_dict(StateScope::kSharded);
    at::Tensor loss = loss_on(*rank.net, rank.world->rank(), 1);
    if (rank.world->rank() == 0) loss = loss * std::numeric_limits<double>::quiet_NaN();
    loss.backward();
    const std::string refusal = message_of([&] { engine.step(); });
    EXPECT_THAT(refusal, AllOf(HasSubstr("[step] non-finite gradient: rank 0 produced"),
                               HasSubstr("first in '"), HasSubstr("load_state_dict() an earlier"),
                               Not(HasSubstr("Nothing was applied"))));
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { engine.step(); }, [&] { engine.zero_grad(); }, [&] { parameter_hash(engine); },
             [&] { rank.backward(1); }}) {
      EXPECT_NE(message_of(call), "nothing was thrown");
    }
    engine.load_state_dict(state);
    {
      const auto scope = engine.full_parameters();
      for (const Parameter& parameter : engine.parameters()) {
        EXPECT_TRUE(parameter.tensor.isfinite().all().item<bool>());
      }
    }
    rank.backward(1);
    EXPECT_EQ(engine.step().step, 2);
    EXPECT_EQ(parameter_hash(engine), hash_after(rank.world, 2));
  });
}

TEST_P(UpdateInBackwardMisuse, AnExceptionInBackwardEndsTheEngineOnAllRanks) {
  const std::vector<std::string> errors =
      run_ranks_expecting_errors(GetParam().world, [&](const std::shared_ptr<ProcessGroup>& world) {
        EarlyRank rank(world, GetParam().configuration);
        const at::Tensor& last = rank.engine->parameters()[0].tensor;
        if (world->rank() == 0) {
          last.register_hook([](const at::Tensor&) { throw std::runtime_error("a user's hook"); });
        }
        const std::string first = message_of([&] { rank.backward(0); });
        EXPECT_NE(first, "nothing was thrown");
        rank.engine->step();
      });
  EXPECT_THAT(errors, Each(HasSubstr("left backward by an exception")));
}

INSTANTIATE_TEST_SUITE_P(Alone, UpdateInBackwardMisuse,
                         ::testing::Values(EarlyUpdateCase{configuration_of(Strategy::kZero2), 1}),
                         name_of_case);
const std::vector<EarlyUpdateCase>& cases_of_three() {
  static const std::vector<EarlyUpdateCase> all = {{configuration_of(Strategy::kZero2), 3},
                                                   {apart(configuration_of(Strategy::kZero2)), 3},
                                                   {configuration_of(Strategy::kZero3), 3},
                                                   {apart(configuration_of(Strategy::kZero3)), 3}};
  return all;
}
INSTANTIATE_TEST_SUITE_P(, UpdateInBackwardMisuse, ::testing::ValuesIn(cases_of_three()),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(, UpdateInBackwardMisuseAmongRanks, ::testing::ValuesIn(cases_of_three()),
                         name_of_case);

TEST(UpdateInBackward, AModuleUsedAgainByRecomputationEndsTheEngine) {
  for (const char* model : {"CheckpointedTwice", "CheckpointedOnSomeRanks"}) {
    const std::vector<std::string> errors =
        run_ranks_expecting_errors(2, [&](const std::shared_ptr<ProcessGroup>& world) {
          train(subject(model), at::kFloat, early(configuration_of(Strategy::kZero3)),
                plain_schedule(), world);
        });
    // The rank that notices it first tells the others that it has left backward.
    EXPECT_THAT(errors, Contains(HasSubstr("used again in this backward (recomputation)")))
        << model;
    EXPECT_THAT(errors, Not(Contains(std::string()))) << model;
  }
}

}  // namespace
}  // namespace tessera::internal::testing
