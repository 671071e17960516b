#include "tessera/zero/state/state_transfer.h"

#include <map>
#include <mutex>
#include <set>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/state_run.h"

// State transfer without an engine: random bits in every slice, so that NaNs, -0 and padding
// matter.
namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr StateModel kFloat{};
constexpr StateModel kMasters{.dtype = at::kBFloat16, .has_scaler = true};

/// The states that a run made by fill(seed) saves on each rank.
std::vector<StateDict> save_at(int world, const StateConfiguration& configuration, StateModel model,
                               StateScope scope, int rank = 0, uint64_t seed = 1) {
  std::vector<StateDict> states(static_cast<size_t>(world));
  run_ranks(world, [&](const std::shared_ptr<ProcessGroup>& group) {
    StateRun run(group, configuration, model);
    run.fill(seed);
    states[static_cast<size_t>(group->rank())] = run.save(scope, rank);
  });
  return states;
}

/// Loads `states` (one per rank) over other values; returns what differs from `seed`, or "".
std::string load_at(int world, const StateConfiguration& configuration, StateModel model,
                    const std::vector<StateDict>& states, uint64_t seed = 1) {
  std::string text;
  std::mutex mutex;
  run_ranks(world, [&](const std::shared_ptr<ProcessGroup>& group) {
    StateRun run(group, configuration, model);
    run.fill(seed + 1);
    run.load(states.at(static_cast<size_t>(group->rank())));
    const std::string differences = run.differences_from(seed);
    const std::lock_guard lock(mutex);
    if (!differences.empty()) text += configuration.name + ":\n" + differences;
  });
  return text;
}

/// Returns the error of loading `states` (one per rank), which must be the same on all ranks; they
/// must keep their values.
std::string refusal_of(int world, const StateConfiguration& configuration, StateModel model,
                       const std::vector<StateDict>& states) {
  std::set<std::string> texts;
  std::mutex mutex;
  run_ranks(world, [&](const std::shared_ptr<ProcessGroup>& group) {
    StateRun run(group, configuration, model);
    run.fill(5);
    std::string text;
    try {
      run.load(states.at(static_cast<size_t>(group->rank())));
    } catch (const c10::Error& error) {
      text = error.what_without_backtrace();
      EXPECT_EQ(run.differences_from(5).find(".exp_avg"), std::string::npos);
      EXPECT_EQ(run.differences_from(5).find("model"), std::string::npos);
      EXPECT_EQ(run.differences_from(5).find("lr"), std::string::npos);
    }
    const std::lock_guard lock(mutex);
    texts.insert(text);
  });
  EXPECT_EQ(texts.size(), 1u) << "all ranks say the same";
  return *texts.begin();
}

class StateTransferAt : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(World, StateTransferAt, ::testing::ValuesIn(spanning_worlds()));

using StateTransferAmongRanks = StateTransferAt;
INSTANTIATE_TEST_SUITE_P(World, StateTransferAmongRanks, ::testing::Values(2, 3, 4));

TEST_P(StateTransferAt, EveryRankGetsAllOfIt) {
  for (const StateModel model : {kFloat, kMasters}) {
    const StateDict expected = StateRun::expected(1, model);
    for (const StateConfiguration& configuration : state_configurations(world())) {
      for (const StateDict& state :
           save_at(world(), configuration, model, StateScope::kEveryRank)) {
        EXPECT_EQ(bit_differences(state, expected), "") << configuration.name;
      }
    }
  }
}

TEST_P(StateTransferAt, OneRankGetsAllOfItTheOthersNothing) {
  const int receiver = world() - 1;
  for (const StateConfiguration& configuration : state_configurations(world())) {
    const auto states = save_at(world(), configuration, kFloat, StateScope::kOneRank, receiver);
    for (int rank = 0; rank < world(); ++rank) {
      const StateDict& state = states[static_cast<size_t>(rank)];
      if (rank == receiver) {
        EXPECT_EQ(bit_differences(state, StateRun::expected(1, kFloat)), "") << configuration.name;
      } else {
        EXPECT_TRUE(state.entries.empty()) << configuration.name;
      }
    }
  }
}

TEST_P(StateTransferAt, ShardsHaveEveryElementExactlyOnce) {
  const StateDict expected = StateRun::expected(1, kMasters);
  for (const StateConfiguration& configuration : state_configurations(world())) {
    StateDict all;
    for (StateDict& state : save_at(world(), configuration, kMasters, StateScope::kSharded)) {
      for (const auto& [name, entry] : state.entries) {
        for (const StatePiece& piece : entry.pieces) {
          EXPECT_EQ(piece.values.storage().nbytes(), piece.values.nbytes()) << "memory of its own";
        }
      }
      all.merge(std::move(state));
    }
    StateDict joined;
    for (const auto& [name, entry] : all.entries) {
      std::map<int64_t, at::Tensor> by_begin;
      int64_t numel = 0;
      for (const StatePiece& piece : entry.pieces) {
        by_begin[piece.begin] = piece.values;
        numel += piece.values.numel();
      }
      EXPECT_EQ(numel, entry.numel()) << configuration.name << " " << name;
      std::vector<at::Tensor> values;
      values.reserve(by_begin.size());
      for (const auto& [begin, piece] : by_begin) values.push_back(piece.view(at::kByte));
      joined.entries[name] = entry;
      joined.entries[name].pieces = {{0, torch::cat(values).view(entry.dtype)}};
    }
    EXPECT_EQ(bit_differences(joined, expected), "") << configuration.name;
  }
}

TEST_P(StateTransferAt, LoadsWhatAnyConfigurationSaved) {
  size_t turn = 0;
  for (const StateModel model : {kFloat, kMasters}) {
    for (const StateConfiguration& from : state_configurations(world())) {
      const auto shards = save_at(world(), from, model, StateScope::kSharded);
      const auto one = save_at(world(), from, model, StateScope::kOneRank, world() - 1);
      size_t turn_of_source = turn++;
      for (const StateConfiguration& to : state_configurations(world())) {
        if (!has_turn(turn_of_source++, 3)) continue;
        EXPECT_EQ(load_at(world(), to, model, shards), "") << "shards of " << from.name;
        EXPECT_EQ(load_at(world(), to, model, one), "") << "whole, of " << from.name;
      }
    }
  }
}

TEST_P(StateTransferAt, LoadsWhatAnyWorldSaved) {
  for (const int saved_at : {1, 2, 3, 4}) {
    for (const StateConfiguration& from : state_configurations(saved_at)) {
      // Rank r of the new world gets the states saved by ranks r, r + world, ... of the old one.
      std::vector<StateDict> merged(static_cast<size_t>(world()));
      auto states = save_at(saved_at, from, kMasters, StateScope::kSharded);
      for (size_t rank = 0; rank < states.size(); ++rank) {
        merged[rank % merged.size()].merge(std::move(states[rank]));
      }
      const StateConfiguration to = state_configurations(world()).back();
      EXPECT_EQ(load_at(world(), to, kMasters, merged), "") << saved_at << " " << from.name;
    }
  }
}

TEST_P(StateTransferAt, ConvertsTheOrderOfMemory) {
  const StateModel contiguous{.is_contiguous = true};
  const StateConfiguration configuration = state_configurations(world()).back();
  const auto states = save_at(world(), configuration, kFloat, StateScope::kSharded);
  std::mutex mutex;
  std::vector<StateDict> loaded;
  run_ranks(world(), [&](const std::shared_ptr<ProcessGroup>& group) {
    StateRun run(group, configuration, contiguous);
    run.fill(2);
    run.load(states[static_cast<size_t>(group->rank())]);
    StateDict state = run.save(StateScope::kEveryRank);
    const std::lock_guard lock(mutex);
    loaded.push_back(std::move(state));
  });
  for (const StateDict& state : loaded) {
    EXPECT_EQ(bit_differences(state, StateRun::expected(1, kFloat)), "");
    EXPECT_EQ(state.entries.at("model.conv.weight").strides, (std::vector<int64_t>{12, 4, 2, 1}));
  }
}

/// The correct state on rank 0, another one on the other ranks.
std::vector<StateDict> right_on_the_lowest(int world) {
  std::vector<StateDict> states;
  states.reserve(static_cast<size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    states.push_back(StateRun::expected(rank == 0 ? 1 : 9, kFloat));
  }
  return states;
}

TEST_P(StateTransferAt, TheLowestRankAndTheFirstPieceWin) {
  const StateConfiguration configuration = state_configurations(world()).back();
  std::vector<StateDict> states = right_on_the_lowest(world());
  // A second, wrong piece overlaps the first.
  StateEntry& entry = states[0].entries.at("model.fc.weight");
  const at::Tensor right = entry.pieces[0].values;
  entry.pieces = {{0, right.narrow(0, 0, 50).clone()}, {40, right.narrow(0, 40, 51).clone()}};
  entry.pieces[1].values.narrow(0, 0, 10).zero_();
  EXPECT_EQ(load_at(world(), configuration, kFloat, states), "");
}

TEST_P(StateTransferAmongRanks, AnotherRankFillsAHoleOfTheLowest) {
  const StateConfiguration configuration = state_configurations(world()).back();
  std::vector<StateDict> states = right_on_the_lowest(world());
  StateEntry& entry = states[0].entries.at("model.fc.weight");
  const at::Tensor right = entry.pieces[0].values;
  entry.pieces = {{0, right.narrow(0, 0, 50).clone()}};
  for (int rank = 1; rank < world(); ++rank) {
    states[static_cast<size_t>(rank)].entries.at("model.fc.weight").pieces = {{0, right}};
  }
  EXPECT_EQ(load_at(world(), configuration, kFloat, states), "");
}

TEST_P(StateTransferAt, ListsEverythingThatIsWrongAndChangesNothing) {
  const StateConfiguration configuration = state_configurations(world()).back();
  std::vector<StateDict> states(static_cast<size_t>(world()), StateRun::expected(1, kFloat));
  for (StateDict& state : states) {
    state.entries.erase("model.fc.bias");
    state.entries.erase("optimizer.bias.lr");
    state.entries.erase("model.empty");
    state.entries["model.old"] = state.entries.at("engine.steps");
    StateEntry& part = state.entries.at("optimizer.wide.weight.exp_avg");
    const at::Tensor values = part.pieces[0].values;
    part.pieces = {{0, values.narrow(0, 0, 10).clone()}, {20, values.narrow(0, 20, 1000).clone()}};
  }
  StateDict& last = states.back();
  last.entries.at("model.scale").dtype = at::kDouble;
  last.entries.at("model.fc.weight").sizes = {7, 13};
  last.entries.at("model.conv.weight").strides = {1, 1, 1, 1};
  const std::string text = refusal_of(world(), configuration, kFloat, states);
  const std::string rank = "rank " + std::to_string(world() - 1) + ": ";
  const std::string ranks = std::vector<std::string>{"0", "0, 1", "0, 1, 2", "0, 1, 2, 3"}.at(
      static_cast<size_t>(world() - 1));
  EXPECT_THAT(
      text,
      AllOf(
          HasSubstr("[state] load_state_dict: got a state that does not fit this run, expected "
                    "exactly the entries of engine->state_dict(); nothing was changed:\n"),
          HasSubstr("\n  rank " + ranks +
                    ": 'model.old': got an entry that this run does not have"),
          HasSubstr("\n  'model.fc.bias': missing"), HasSubstr("\n  'optimizer.bias.lr': missing"),
          HasSubstr("\n  'model.empty': missing"),
          HasSubstr("\n  'optimizer.wide.weight.exp_avg': elements 10 to 20, 1020 to 1073 of "
                    "1073 are missing"),
          HasSubstr(rank + "'model.scale': got dtype Double, expected Float; load into the "
                           "precision that was saved"),
          HasSubstr(rank + "'model.fc.weight': got shape [7, 13], expected [13, 7]"),
          HasSubstr(rank + "'model.conv.weight': got strides [1, 1, 1, 1] for sizes [5, 3, 2, 2], "
                           "expected dense ones without overlap")));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("'model.scale': missing")),
                          Not(HasSubstr("'model.fc.weight': missing")), Not(HasSubstr("frozen"))));
}

TEST_P(StateTransferAmongRanks, MustAgreeOnTheOrderOfMemory) {
  std::vector<StateDict> states(static_cast<size_t>(world()), StateRun::expected(1, kFloat));
  states.back() = StateRun::expected(1, {.is_contiguous = true});
  EXPECT_THAT(refusal_of(world(), state_configurations(world()).back(), kFloat, states),
              HasSubstr("'model.conv.weight': got strides [12, 1, 6, 3] from rank 0 and [12, 4, 2, "
                        "1] from rank " +
                        std::to_string(world() - 1) + ", expected the same from all"));
}

TEST_P(StateTransferAt, RefusesNumbersOutOfRange) {
  std::vector<StateDict> states(static_cast<size_t>(world()), StateRun::expected(1, kMasters));
  for (StateDict& state : states) {
    state.entries.at("optimizer.bias #2.beta1").pieces[0].values.fill_(1.5);
    state.entries.at("optimizer.fc.bias.step").pieces[0].values.fill_(-1);
    state.entries.at("scaler.scale").pieces[0].values.fill_(0.0);
  }
  EXPECT_THAT(refusal_of(world(), state_configurations(world()).back(), kMasters, states),
              AllOf(HasSubstr(std::string(world() > 1 ? "[state] all ranks" : "[state] rank 0") +
                              ": load_state_dict: got a state that does not fit this run or cannot "
                              "be read; nothing was changed:\n  [optim] group 'bias': beta1: got "
                              "1.5, expected 0 <= beta1 < 1"),
                    HasSubstr("'optimizer.fc.bias.step': got -1, expected at least 0"),
                    HasSubstr("'scaler.scale': got 0, expected a normal number of fp32 above 0")));
}

TEST_P(StateTransferAt, PrecisionsAndScalersMustAgree) {
  const StateConfiguration configuration = state_configurations(world()).back();
  const std::vector<StateDict> states(static_cast<size_t>(world()),
                                      StateRun::expected(1, kMasters));
  EXPECT_THAT(refusal_of(world(), configuration, kFloat, states),
              AllOf(HasSubstr("'model.scale': got dtype BFloat16, expected Float"),
                    HasSubstr("'optimizer.scale.master': got an entry that this run does not have"),
                    HasSubstr("'scaler.scale': got an entry that this run does not have")));
  const std::vector<StateDict> plain(static_cast<size_t>(world()), StateRun::expected(1, kFloat));
  EXPECT_THAT(
      refusal_of(world(), configuration, kMasters, plain),
      AllOf(HasSubstr("'model.scale': got dtype Float, expected BFloat16"),
            HasSubstr("'optimizer.scale.master': missing"), HasSubstr("'scaler.scale': missing")));
}

TEST(StateTransfer, SavingComparesTheShapesOfBuffers) {
  const StateConfiguration configuration = state_configurations(3).front();
  const auto errors =
      run_ranks_expecting_errors(3, [&](const std::shared_ptr<ProcessGroup>& group) {
        StateRun run(group, configuration);
        if (group->rank() == 1) run.buffers().front().tensor.resize_({0});
        (void)run.save(StateScope::kEveryRank);
      });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("[state_dict] rank 1 differs from rank 0 at entry "),
                                 HasSubstr(" [0]'"))));
}

TEST_P(StateTransferAt, SavingChecksItsArguments) {
  run_ranks(world(), [](const std::shared_ptr<ProcessGroup>& group) {
    StateRun run(group, state_configurations(group->size()).back());
    const auto text_of = [&](StateScope scope, int rank) {
      try {
        run.save(scope, rank);
      } catch (const c10::Error& error) {
        return std::string(error.what_without_backtrace());
      }
      return std::string();
    };
    EXPECT_THAT(text_of(StateScope::kOneRank, group->size()),
                HasSubstr("[state] state_dict: got rank " + std::to_string(group->size()) +
                          ", expected 0 to " + std::to_string(group->size() - 1)));
    EXPECT_THAT(text_of(static_cast<StateScope>(9), 0),
                HasSubstr("[state] state_dict: got scope 9, expected kEveryRank, "));
    if (group->size() > 1) {
      const bool is_last = group->rank() == group->size() - 1;
      EXPECT_THAT(
          text_of(is_last ? StateScope::kSharded : StateScope::kEveryRank, 0),
          AllOf(HasSubstr("[state_dict] rank "), HasSubstr("'scope sharded' vs 'scope every "
                                                           "rank'")));
    }
    if (group->rank() == 0) run.optimizer().param_groups().pop_back();
    EXPECT_THAT(text_of(StateScope::kSharded, 0),
                HasSubstr("[state] rank 0: [optim] parameter groups: got 2, expected 3"));
  });
}

TEST(StateTransferNegativeControl, WhatTheComparisonsMustCatch) {
  const int world = 3;
  const StateConfiguration configuration = state_configurations(world).back();
  const auto states = save_at(world, configuration, kFloat, StateScope::kSharded);
  ASSERT_EQ(load_at(world, configuration, kFloat, states), "");

  auto flipped = states;
  StateEntry& entry = flipped[1].entries.begin()->second;
  entry.pieces[0].values = entry.pieces[0].values.clone();
  static_cast<unsigned char*>(entry.pieces[0].values.mutable_data_ptr())[0] ^= 1;
  EXPECT_THAT(load_at(world, configuration, kFloat, flipped), HasSubstr("differs")) << "one bit";

  auto dropped = states;
  dropped[1].entries.erase(dropped[1].entries.begin());
  EXPECT_THAT(refusal_of(world, configuration, kFloat, dropped), HasSubstr("missing"));

  StateDict whole = StateRun::expected(1, kFloat);
  EXPECT_EQ(bit_differences(whole, StateRun::expected(1, kFloat)), "");
  EXPECT_THAT(bit_differences(whole, StateRun::expected(2, kFloat)), HasSubstr("model.fc.weight"));
  whole.entries.erase("model.scale");
  EXPECT_EQ(bit_differences(whole, StateRun::expected(1, kFloat)), "model.scale is missing\n");
}

}  // namespace
}  // namespace tessera::internal::testing
