#include "tessera/core/state_dict.h"

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

#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/zero/engine_fixture.h"

// Engine::state_dict and load_state_dict: a run that is saved and loaded elsewhere is the same run.
namespace tessera::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

/// What a model is trained in as `row` says.
at::ScalarType dtype_of(const Row& row) { return row.precision.parameters.value_or(at::kFloat); }

/// One rank of a run.
struct SavedRank : EngineRank<Net> {
  SavedRank(std::shared_ptr<ProcessGroup> group, const std::string& model, const Row& row,
            uint64_t seed)
      : SavedRank(std::move(group), subject(model), row,
                  prepare(subject(model).make(), at::kFloat, seed)) {}

  at::Tensor loss(int step) const override {
    const Schedule schedule{.name = ""};
    const Moment moment{.step = step, .rank = world->rank()};
    const Batch batch = batch_of(trained, dtype, schedule, moment, 0);
    return engine->scale(loss_of(*net, batch, moment, schedule));
  }
  void train(int begin, int end) const {
    for (int step = begin; step < end; ++step) EngineRank::train(step);
  }

  Subject trained;
  at::ScalarType dtype;

 private:
  SavedRank(std::shared_ptr<ProcessGroup> group, Subject subject, const Row& row,
            const std::shared_ptr<Net>& model)
      : EngineRank(std::move(group), model, make_plan(*model), scaled_options_of(row)),
        trained(std::move(subject)),
        dtype(dtype_of(row)) {}
  static Options scaled_options_of(const Row& row) {
    Options options = small_options_of(row);
    if (dtype_of(row) == at::kBFloat16) options.loss_scale = LossScale{.growth_interval = 3};
    return options;
  }
};

using States = std::vector<StateDict>;  // by rank

/// Runs `body` on `world` ranks and returns each one's answer.
States on_ranks(int world, const std::function<StateDict(std::shared_ptr<ProcessGroup>)>& body) {
  States states(static_cast<size_t>(world));
  run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
    const auto rank = static_cast<size_t>(group->rank());
    states[rank] = body(std::move(group));
  });
  return states;
}

/// What a run of `steps` steps saves.
States saved_after(int steps, int world, const std::string& model, const Row& row,
                   StateScope scope) {
  return on_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), model, row, 3);
    run.train(0, steps);
    return run.engine->state_dict(scope);
  });
}

/// What a run that loads `states`, over other values, saves after training steps [begin, end).
StateDict continued(const States& states, int begin, int end, const std::string& model,
                    const Row& row) {
  const int world = static_cast<int>(states.size());
  return on_ranks(world,
                  [&](std::shared_ptr<ProcessGroup> group) {
                    const StateDict& own = states[static_cast<size_t>(group->rank())];
                    const SavedRank run(std::move(group), model, row, 77);
                    run.train(0, 1);
                    run.engine->load_state_dict(own);
                    run.train(begin, end);
                    return run.engine->state_dict(StateScope::kEveryRank);
                  })
      .back();
}

/// Rank r of `world` gets what ranks r, r + world, ... had.
States dealt(States states, int world) {
  States dealt(static_cast<size_t>(world));
  for (size_t rank = 0; rank < states.size(); ++rank) {
    dealt[rank % dealt.size()].merge(std::move(states[rank]));
  }
  return dealt;
}

std::vector<Row> rows_at(int world) {
  std::vector<Row> rows = named_rows();
  if (world % 2 == 0) rows.push_back(hybrid(2, 2, 2));
  if (world == 4) rows.push_back(hybrid(1, 2, 2));
  return rows;
}

Row in_bf16(Row row) {
  row.precision.parameters = at::kBFloat16;
  return row;
}

class EngineState : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }

  /// Saving after two steps, under any row, and going on under any other is one run of four.
  void expect_continuity(const std::string& model, const std::vector<Row>& rows) const {
    SCOPED_TRACE(model);
    const StateDict expected =
        saved_after(4, world(), model, rows.front(), StateScope::kEveryRank).back();
    for (const Row& from : rows) {
      const States states = saved_after(2, world(), model, from, StateScope::kSharded);
      for (const Row& to : rows) {
        EXPECT_EQ(bit_differences(continued(states, 2, 4, model, to), expected), "")
            << from << " to " << to;
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(World, EngineState, ::testing::Values(1, 2, 3, 4));

TEST_P(EngineState, GoesOnUnderAnyRowBitForBit) { expect_continuity("OddMlp", rows_at(world())); }

TEST_P(EngineState, GoesOnWithModelsThatBreakEngines) {
  std::vector<Row> rows = {row_of(Strategy::kDdp), row_of(Strategy::kZero3)};
  if (world() == 4) rows.push_back(hybrid(2, 2, 2));
  for (const char* model : {"BatchNorm", "FrozenLayers", "ChannelsLast", "TiedMlp",
                            "EmptyParameter", "TinyAndScalar", "UnusedEverywhere", "MixedDtypes"}) {
    expect_continuity(model, rows);
  }
}

TEST_P(EngineState, GoesOnWithMastersAndLossScale) {
  std::vector<Row> rows = rows_at(world());
  for (Row& row : rows) row = in_bf16(row);
  expect_continuity("OddMlp", rows);
  expect_continuity("FrozenLayers", {rows.front(), rows[3]});
  const StateDict state =
      saved_after(4, world(), "OddMlp", rows.back(), StateScope::kEveryRank).back();
  EXPECT_EQ(state.entries.at("scaler.scale").tensor().item<double>(), 131072.0);
  EXPECT_EQ(state.entries.at("scaler.good_steps").tensor().item<int64_t>(), 1);
  EXPECT_EQ(state.entries.at("engine.steps").tensor().item<int64_t>(), 4);
}

TEST_P(EngineState, LoadsIntoAnyNumberOfRanks) {
  for (const int other : {1, 2, 3, 4}) {
    for (const Row& from : rows_at(other)) {
      const StateDict expected =
          saved_after(2, other, "ChannelsLast", from, StateScope::kEveryRank).front();
      const States shards =
          dealt(saved_after(2, other, "ChannelsLast", from, StateScope::kSharded), world());
      const Row to = rows_at(world()).back();
      EXPECT_EQ(bit_differences(continued(shards, 2, 2, "ChannelsLast", to), expected), "")
          << from << " at " << other << " to " << to;
    }
  }
}

TEST_P(EngineState, OneRankMayHaveAllOfIt) {
  for (const Row& row : rows_at(world())) {
    const int keeper = world() - 1;
    const auto save = [&](std::shared_ptr<ProcessGroup> group) {
      const SavedRank run(std::move(group), "FrozenLayers", row, 3);
      run.train(0, 2);
      return run.engine->state_dict(StateScope::kOneRank, keeper);
    };
    const States states = on_ranks(world(), save);
    for (int rank = 0; rank < keeper; ++rank) {
      EXPECT_TRUE(states[static_cast<size_t>(rank)].entries.empty());
    }
    const StateDict& whole = states[static_cast<size_t>(keeper)];
    EXPECT_EQ(bit_differences(continued(states, 2, 2, "FrozenLayers", row), whole), "") << row;
  }
}

TEST_P(EngineState, HasTheValuesThatTheModelShows) {
  for (const Row& row : rows_at(world())) {
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const SavedRank run(std::move(group), "TiedMlp", row, 3);
      run.train(0, 1);
      const StateDict state = run.engine->state_dict(StateScope::kEveryRank);
      const auto whole = run.engine->full_parameters();
      for (const Parameter& parameter : run.engine->parameters()) {
        const at::Tensor saved = state.entries.at("model." + parameter.name).tensor();
        EXPECT_TRUE(at::equal(saved, parameter.tensor)) << row << parameter.name;
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
  for (const Row& row : rows_at(world())) {
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const SavedRank first(group, "OddMlp", row, 3);
      torch::optim::StepLR schedule(first.engine->optimizer(), 1, 0.1);
      first.train(0, 1);
      for (int step = 0; step < 2; ++step) schedule.step();  // the first changes nothing
      const StateDict state = first.engine->state_dict(StateScope::kSharded);
      const SavedRank second(group, "OddMlp", row, 4);
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
  for (const Row& row : rows_at(world())) {
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const SavedRank run(std::move(group), "OddMlp", row, 3);
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
  for (const Row& row : rows_at(world())) {
    const StateDict expected =
        saved_after(2, world(), "OddMlp", row, StateScope::kEveryRank).back();
    const States states = on_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const bool is_last = group->rank() == group->size() - 1;
      const SavedRank run(std::move(group), "OddMlp", row, 3);
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
    EXPECT_EQ(bit_differences(states.back(), expected), "") << row;
  }
}

TEST_P(EngineState, RefusesWhereScopesAreOpen) {
  for (const Row& row : rows_at(world())) {
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const SavedRank run(std::move(group), "OddMlp", row, 3);
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
    const SavedRank run(std::move(group), "OddMlp", row_of(Strategy::kZero3), 3);
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
  const Row row = row_of(Strategy::kZero3);
  const StateDict expected = saved_after(4, world, "OddMlp", row, StateScope::kEveryRank).back();
  States states = saved_after(2, world, "OddMlp", row, StateScope::kSharded);
  EXPECT_EQ(bit_differences(continued(states, 2, 4, "OddMlp", row), expected), "");
  EXPECT_THAT(bit_differences(continued(states, 3, 4, "OddMlp", row), expected),
              AllOf(HasSubstr("engine.steps"), HasSubstr("exp_avg_sq")))
      << "a step less";
  for (auto& [name, entry] : states[1].entries) {
    if (!name.ends_with(".exp_avg") || entry.pieces.empty()) continue;
    entry.pieces[0].values = entry.pieces[0].values.clone();
    entry.pieces[0].values[0] += 1e-3;
    break;
  }
  const std::string text = bit_differences(continued(states, 2, 4, "OddMlp", row), expected);
  EXPECT_THAT(text, AllOf(HasSubstr("model."), Not(HasSubstr("engine.steps")))) << "one moment";
}

}  // namespace
}  // namespace tessera::testing
