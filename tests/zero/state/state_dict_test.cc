#include "tessera/state_dict.h"

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/zero/state/saved_rank.h"

// Engine::state_dict() and load_state_dict(): a run that is saved and loaded elsewhere is the same
// run.
namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

/// The state of a run that loads `states` over other values and trains steps [begin, end).
StateDict continued(const States& states, int begin, int end, const std::string& model,
                    const Configuration& configuration) {
  const int world = static_cast<int>(states.size());
  return on_ranks(world,
                  [&](std::shared_ptr<ProcessGroup> group) {
                    const StateDict& own = states[static_cast<size_t>(group->rank())];
                    const SavedRank run(std::move(group), model, configuration, 77);
                    run.train(0, 1);
                    run.engine->load_state_dict(own);
                    run.train(begin, end);
                    return run.engine->state_dict(StateScope::kEveryRank);
                  })
      .back();
}

/// Gives rank r of `world` the states of ranks r, r + world, ...
States dealt(States states, int world) {
  States dealt(static_cast<size_t>(world));
  for (size_t rank = 0; rank < states.size(); ++rank) {
    dealt[rank % dealt.size()].merge(std::move(states[rank]));
  }
  return dealt;
}

Configuration in_bf16(Configuration configuration) {
  configuration.precision.parameters = at::kBFloat16;
  return configuration;
}

class EngineState : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }

  /// Saving after two steps, under any configuration, and continuing under any other equals a run
  /// of four steps.
  void expect_continuity(const std::string& model,
                         const std::vector<Configuration>& configurations) const {
    SCOPED_TRACE(model);
    const StateDict expected =
        saved_after(4, world(), model, configurations.front(), StateScope::kEveryRank).back();
    for (const Configuration& from : configurations) {
      const States states = saved_after(2, world(), model, from, StateScope::kSharded);
      for (const Configuration& to : configurations) {
        EXPECT_EQ(bit_differences(continued(states, 2, 4, model, to), expected), "")
            << from << " to " << to;
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(World, EngineState, ::testing::ValuesIn(spanning_worlds()));

TEST_P(EngineState, GoesOnUnderAnyConfigurationBitForBit) {
  expect_continuity("OddMlp", configurations_at(world()));
}

TEST_P(EngineState, GoesOnWithModelsThatBreakEngines) {
  std::vector<Configuration> configurations = {configuration_of(Strategy::kZero3)};
  if (takes_all_rows() || world() == 3) configurations.push_back(configuration_of(Strategy::kDdp));
  if (world() == 4) configurations.push_back(hybrid(2, 2, 2));
  for (const char* model : {"BatchNorm", "FrozenLayers", "ChannelsLast", "TiedMlp",
                            "EmptyParameter", "TinyAndScalar", "UnusedEverywhere", "MixedDtypes"}) {
    expect_continuity(model, configurations);
  }
}

TEST_P(EngineState, GoesOnWithMastersAndLossScale) {
  std::vector<Configuration> configurations = configurations_at(world());
  for (Configuration& configuration : configurations) configuration = in_bf16(configuration);
  expect_continuity("OddMlp", configurations);
  expect_continuity("FrozenLayers", {configurations.front(), configurations.back()});
  const StateDict state =
      saved_after(4, world(), "OddMlp", configurations.back(), StateScope::kEveryRank).back();
  EXPECT_EQ(state.entries.at("scaler.scale").tensor().item<double>(), 131072.0);
  EXPECT_EQ(state.entries.at("scaler.good_steps").tensor().item<int64_t>(), 1);
  EXPECT_EQ(state.entries.at("engine.steps").tensor().item<int64_t>(), 4);
}

TEST_P(EngineState, LoadsIntoAnyNumberOfRanks) {
  for (const int other : spanning_worlds()) {
    for (const Configuration& from : configurations_at(other)) {
      const StateDict expected =
          saved_after(2, other, "ChannelsLast", from, StateScope::kEveryRank).front();
      const States shards =
          dealt(saved_after(2, other, "ChannelsLast", from, StateScope::kSharded), world());
      const Configuration to = configurations_at(world()).back();
      EXPECT_EQ(bit_differences(continued(shards, 2, 2, "ChannelsLast", to), expected), "")
          << from << " at " << other << " to " << to;
    }
  }
}

TEST_P(EngineState, OneRankMayHaveAllOfIt) {
  for (const Configuration& configuration : configurations_at(world())) {
    const int keeper = world() - 1;
    const auto save = [&](std::shared_ptr<ProcessGroup> group) {
      const SavedRank run(std::move(group), "FrozenLayers", configuration, 3);
      run.train(0, 2);
      return run.engine->state_dict(StateScope::kOneRank, keeper);
    };
    const States states = on_ranks(world(), save);
    for (int rank = 0; rank < keeper; ++rank) {
      EXPECT_TRUE(states[static_cast<size_t>(rank)].entries.empty());
    }
    const StateDict& whole = states[static_cast<size_t>(keeper)];
    EXPECT_EQ(bit_differences(continued(states, 2, 2, "FrozenLayers", configuration), whole), "")
        << configuration;
  }
}

TEST_P(EngineState, HasTheValuesThatTheModelShows) {
  for (const Configuration& configuration : configurations_at(world())) {
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const SavedRank run(std::move(group), "TiedMlp", configuration, 3);
      run.train(0, 1);
      const StateDict state = run.engine->state_dict(StateScope::kEveryRank);
      const auto whole = run.engine->full_parameters();
      for (const Parameter& parameter : run.engine->parameters()) {
        const at::Tensor saved = state.entries.at("model." + parameter.name).tensor();
        EXPECT_TRUE(at::equal(saved, parameter.tensor)) << configuration << parameter.name;
        EXPECT_EQ(state.entries.at("optimizer." + parameter.name + ".step").tensor().item<int>(),
                  1);
        for (const std::string& name : parameter.other_names) {
          EXPECT_FALSE(state.entries.contains("model." + name)) << "shared: the first name only";
        }
      }
    });
  }
}

TEST_P(EngineState, RestoresWhatASchedulerChanged) {
  for (const Configuration& configuration : configurations_at(world())) {
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const SavedRank first(group, "OddMlp", configuration, 3);
      torch::optim::StepLR schedule(first.engine->optimizer(), 1, 0.1);
      first.train(0, 1);
      for (int step = 0; step < 2; ++step) schedule.step();  // the first has no effect
      const StateDict state = first.engine->state_dict(StateScope::kSharded);
      const SavedRank second(group, "OddMlp", configuration, 4);
      auto& groups = second.engine->optimizer().param_groups();
      static_cast<torch::optim::AdamWOptions&>(groups[1].options()).eps(0.5).weight_decay(0.7);
      second.engine->load_state_dict(state);
      for (size_t i = 0; i < groups.size(); ++i) {
        const auto& expected = static_cast<const torch::optim::AdamWOptions&>(
            first.engine->optimizer().param_groups()[i].options());
        EXPECT_TRUE(static_cast<torch::optim::AdamWOptions&>(groups[i].options()) == expected);
      }
      EXPECT_DOUBLE_EQ(groups[0].options().get_lr(), 0.002);
    });
  }
}

TEST_P(EngineState, LoadingDropsGradientsAndOldGraphs) {
  for (const Configuration& configuration : configurations_at(world())) {
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const SavedRank run(std::move(group), "OddMlp", configuration, 3);
      run.train(0, 1);
      const StateDict state = run.engine->state_dict(StateScope::kSharded);
      run.backward(1);
      run.engine->load_state_dict(state);
      const auto step = [&] { run.engine->step(); };
      EXPECT_THAT(step, ThrowsMessage<c10::Error>(HasSubstr("without a backward")));
      run.train(1, 2);
    });
  }
}

TEST_P(EngineState, ARefusedStateChangesNothingAndTrainingGoesOn) {
  for (const Configuration& configuration : configurations_at(world())) {
    const StateDict expected =
        saved_after(2, world(), "OddMlp", configuration, StateScope::kEveryRank).back();
    const States states = on_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const bool is_last = group->rank() == group->size() - 1;
      const SavedRank run(std::move(group), "OddMlp", configuration, 3);
      run.train(0, 1);
      StateDict state = run.engine->state_dict(StateScope::kSharded);
      const std::string name = run.engine->parameters()[0].name;
      if (is_last) state.entries["model.old"] = StateEntry{};
      state.entries.erase("model." + name);
      const auto load = [&] { run.engine->load_state_dict(state); };
      EXPECT_THAT(load, ThrowsMessage<c10::Error>(AllOf(
                            HasSubstr("[state] load_state_dict: got a state that does not fit this "
                                      "run"),
                            HasSubstr("'model." + name + "': missing"),
                            HasSubstr("'model.old': got an entry that this run does not have"))));
      run.train(1, 2);
      return run.engine->state_dict(StateScope::kEveryRank);
    });
    EXPECT_EQ(bit_differences(states.back(), expected), "") << configuration;
  }
}

TEST_P(EngineState, RefusesWhereScopesAreOpen) {
  for (const Configuration& configuration : configurations_at(world())) {
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const SavedRank run(std::move(group), "OddMlp", configuration, 3);
      const StateDict state = run.engine->state_dict(StateScope::kSharded);
      auto scope = run.engine->full_parameters();
      const auto load = [&] { run.engine->load_state_dict(state); };
      EXPECT_THAT(load, ThrowsMessage<c10::Error>(HasSubstr("load_state_dict: called while a "
                                                            "full_parameters()")));
      scope.reset();
      load();
      run.train(0, 1);
    });
  }
}

TEST_P(EngineState, ShardsAreSavedWithoutGathering) {
  run_ranks(world(), [](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero3), 3);
    run.train(0, 1);
    const int64_t gathers = run.engine->gather_counts().gathers;
    for (const StateScope scope : {StateScope::kSharded, StateScope::kEveryRank}) {
      run.engine->load_state_dict(run.engine->state_dict(scope));
    }
    EXPECT_EQ(run.engine->gather_counts().gathers, gathers);
  });
}

TEST(EngineStateNegativeControl, WhatTheComparisonMustCatch) {
  const int world = 3;
  const Configuration configuration = configuration_of(Strategy::kZero3);
  const StateDict expected =
      saved_after(4, world, "OddMlp", configuration, StateScope::kEveryRank).back();
  States states = saved_after(2, world, "OddMlp", configuration, StateScope::kSharded);
  EXPECT_EQ(bit_differences(continued(states, 2, 4, "OddMlp", configuration), expected), "");
  EXPECT_THAT(bit_differences(continued(states, 3, 4, "OddMlp", configuration), expected),
              AllOf(HasSubstr("engine.steps"), HasSubstr("exp_avg_sq")))
      << "a step less";
  for (auto& [name, entry] : states[1].entries) {
    if (!name.ends_with(".exp_avg") || entry.pieces.empty()) continue;
    entry.pieces[0].values = entry.pieces[0].values.clone();
    entry.pieces[0].values[0] += 1e-3;
    break;
  }
  const std::string text =
      bit_differences(continued(states, 2, 4, "OddMlp", configuration), expected);
  EXPECT_THAT(text, AllOf(HasSubstr("model."), Not(HasSubstr("engine.steps")))) << "one moment";
}

}  // namespace
}  // namespace tessera::internal::testing
