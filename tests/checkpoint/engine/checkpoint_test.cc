#include "tessera/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/checkpoints.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/zero/state/saved_rank.h"

// save_checkpoint() and load_checkpoint(): a run that is saved and loaded elsewhere is the same
// run.
namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

/// Trains `steps` steps and saves.
void save_after(int steps, int world, const std::string& model, const Configuration& configuration,
                const std::string& directory) {
  run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), model, configuration, 3);
    run.train(0, steps);
    EXPECT_EQ(save_checkpoint(*run.engine, directory),
              directory + "/step-" + std::to_string(steps));
  });
}

/// The state of a run that loads over other values and trains steps [begin, end).
StateDict loaded_and_trained(int world, const std::string& model,
                             const Configuration& configuration, const std::string& directory,
                             int begin, int end) {
  return on_ranks(world,
                  [&](std::shared_ptr<ProcessGroup> group) {
                    const SavedRank run(std::move(group), model, configuration, 77);
                    run.train(0, 1);
                    const auto loaded = load_checkpoint(*run.engine, directory);
                    EXPECT_TRUE(loaded.has_value() && loaded->step == begin);
                    EXPECT_EQ(run.engine->steps(), begin);
                    run.train(begin, end);
                    return run.engine->state_dict(StateScope::kEveryRank);
                  })
      .back();
}

void flip_a_byte_near_the_end(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-5, std::ios::end);
  const int byte = file.get();
  file.seekp(-5, std::ios::end);
  file.put(static_cast<char>(byte ^ 4));
  ASSERT_TRUE(file.good());
}

std::string file_of(const std::string& directory, int step, int rank, int world) {
  return directory + "/step-" + std::to_string(step) + "/rank-0000" + std::to_string(rank) +
         "-of-0000" + std::to_string(world) + ".safetensors";
}

class EngineCheckpoint : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(World, EngineCheckpoint, ::testing::ValuesIn(spanning_worlds()));

TEST_P(EngineCheckpoint, GoesOnUnderAnyConfigurationBitForBit) {
  size_t turn = 0;
  for (const char* model : {"OddMlp", "BatchNorm", "FrozenLayers", "ChannelsLast", "TiedMlp",
                            "EmptyParameter", "TinyAndScalar", "MixedDtypes"}) {
    SCOPED_TRACE(model);
    size_t turn_of_model = turn++;
    const std::vector<Configuration> configurations = configurations_at(world());
    const StateDict expected =
        saved_after(4, world(), model, configurations.front(), StateScope::kEveryRank).back();
    for (const Configuration& from : configurations) {
      if (!has_turn(turn_of_model++, 3)) continue;
      const TemporaryDirectory directory;
      save_after(2, world(), model, from, directory.path());
      for (const Configuration& to : {from, configurations.back()}) {
        EXPECT_EQ(bit_differences(loaded_and_trained(world(), model, to, directory.path(), 2, 4),
                                  expected),
                  "")
            << from << " to " << to;
      }
    }
  }
}

TEST_P(EngineCheckpoint, Case60_LoadsAtAnyNumberOfRanksWithMastersAndLossScale) {
  for (const int other : spanning_worlds()) {
    for (const Configuration& plain : configurations_at(other)) {
      const Configuration from = in_bfloat16(plain);
      const Configuration to = in_bfloat16(configurations_at(world()).back());
      const TemporaryDirectory directory;
      save_after(2, other, "OddMlp", from, directory.path());
      const StateDict expected =
          saved_after(2, other, "OddMlp", from, StateScope::kEveryRank).front();
      EXPECT_EQ(bit_differences(loaded_and_trained(world(), "OddMlp", to, directory.path(), 2, 2),
                                expected),
                "")
          << from << " at " << other << " to " << to;
    }
  }
}

TEST_P(EngineCheckpoint, KeepsWhatTheProgramAdds) {
  const TemporaryDirectory directory;
  const Configuration configuration = configuration_of(Strategy::kZero3);
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const int rank = group->rank();
    const SavedRank run(std::move(group), "OddMlp", configuration, 3);
    run.train(0, 1);
    SaveOptions options;
    options.notes = {{"data", "made up"}};
    options.extras.values = {{"epoch", int64_t{7}}, {"best", 0.25}, {"name", "a \"run\"\n"}};
    options.extras.tensors = {{"curve", torch::arange(6, torch::kDouble).view({2, 3}).t()},
                              {"mask", torch::ones({3}, torch::kBool)},
                              {"nothing", torch::empty({0, 4})}};
    options.extras.rank_tensors = {{"generator", torch::full({5}, rank, torch::kByte)}};
    save_checkpoint(*run.engine, directory.path(), options);
  });
  for (const int other : {world(), world() + 1}) {
    run_ranks(other, [&](std::shared_ptr<ProcessGroup> group) {
      const int rank = group->rank();
      const SavedRank run(std::move(group), "OddMlp", configuration, 4);
      const auto loaded = load_checkpoint(*run.engine, directory.path());
      ASSERT_TRUE(loaded.has_value());
      EXPECT_EQ(loaded->world, world());
      EXPECT_EQ(loaded->notes.at("data"), "made up");
      EXPECT_EQ(std::get<int64_t>(loaded->extras.values.at("epoch")), 7);
      EXPECT_EQ(std::get<double>(loaded->extras.values.at("best")), 0.25);
      EXPECT_EQ(std::get<std::string>(loaded->extras.values.at("name")), "a \"run\"\n");
      EXPECT_TRUE(at::equal(loaded->extras.tensors.at("curve"),
                            torch::arange(6, torch::kDouble).view({2, 3}).t()));
      EXPECT_TRUE(loaded->extras.tensors.at("mask").all().item<bool>());
      EXPECT_EQ(loaded->extras.tensors.at("nothing").sizes(), (std::vector<int64_t>{0, 4}));
      if (other != world()) {
        EXPECT_THAT(loaded->extras.rank_tensors, IsEmpty());
      } else {
        EXPECT_TRUE(at::equal(loaded->extras.rank_tensors.at("generator"),
                              torch::full({5}, rank, torch::kByte)));
      }
    });
  }
}

TEST_P(EngineCheckpoint, AFreshRunFindsNothing) {
  const TemporaryDirectory directory;
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero2), 3);
    EXPECT_FALSE(load_checkpoint(*run.engine, directory.path()).has_value());
    EXPECT_FALSE(load_checkpoint(*run.engine, directory.path() + "/later").has_value());
    run.train(0, 1);
  });
  EXPECT_THAT(names_in(directory.path()), IsEmpty()) << "loading writes nothing";
}

TEST_P(EngineCheckpoint, IsTheSameOnAllRanks) {
  if (world() == 1) return;
  const TemporaryDirectory directory, other;
  for (const auto* run : {&directory, &other}) {
    save_after(1, world(), "OddMlp", configuration_of(Strategy::kZero1), run->path());
  }
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const bool is_last = group->rank() == world() - 1;
    const SavedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero3), 77);
    const StateDict before = run.engine->state_dict(StateScope::kEveryRank);
    EXPECT_THAT([&] { load_checkpoint(*run.engine, is_last ? other.path() : directory.path()); },
                ThrowsMessage<c10::Error>(HasSubstr("got other saves on rank 0 (")));
    EXPECT_EQ(bit_differences(run.engine->state_dict(StateScope::kEveryRank), before), "");
    EXPECT_THAT(([&] {
                  const Checkpoints wrong(*run.engine, directory.path(),
                                          {.every = is_last ? 2 : 1});
                }),
                ThrowsMessage<c10::Error>(HasSubstr("'every 2' vs 'every 1'")));
  });
}

TEST_P(EngineCheckpoint, AStepThatOneRankDoesNotSeeIsNoReasonToGoBack) {
  const int ranks = std::max(world(), 2);
  const TemporaryDirectory directory, other;
  const Configuration configuration = configuration_of(Strategy::kZero3);
  for (const int steps : {1, 2}) {
    save_after(steps, ranks, "OddMlp", configuration, directory.path());
  }
  std::filesystem::copy(directory.path() + "/step-1", other.path() + "/step-1");
  run_ranks(ranks, [&](std::shared_ptr<ProcessGroup> group) {
    const int last = ranks - 1;
    const std::string& seen = group->rank() == last ? other.path() : directory.path();
    const SavedRank run(std::move(group), "OddMlp", configuration, 77);
    const StateDict before = run.engine->state_dict(StateScope::kEveryRank);
    EXPECT_THAT([&] { load_checkpoint(*run.engine, seen); },
                ThrowsMessage<c10::Error>(HasSubstr("step-2': got it on rank 0 and not on rank " +
                                                    std::to_string(last))));
    EXPECT_EQ(bit_differences(run.engine->state_dict(StateScope::kEveryRank), before), "");
    const auto loaded = load_checkpoint(*run.engine, seen, {.step = 1});
    EXPECT_TRUE(loaded.has_value() && loaded->step == 1) << "of which both have a copy";
  });
}

TEST_P(EngineCheckpoint, RanksThatAskForDifferentStepsAreRefused) {
  const int ranks = std::max(world(), 2);
  const TemporaryDirectory directory;
  const Configuration configuration = configuration_of(Strategy::kZero1);
  for (const int steps : {1, 2})
    save_after(steps, ranks, "OddMlp", configuration, directory.path());
  run_ranks(ranks, [&](std::shared_ptr<ProcessGroup> group) {
    const int64_t wanted = group->rank() == 0 ? 1 : 2;
    const SavedRank run(std::move(group), "OddMlp", configuration, 77);
    EXPECT_THAT([&] { load_checkpoint(*run.engine, directory.path(), {.step = wanted}); },
                ThrowsMessage<c10::Error>(AllOf(HasSubstr("'step 1'"), HasSubstr("'step 2'"))));
    EXPECT_THAT([&] { load_checkpoint(*run.engine, directory.path(), {.step = -1}); },
                ThrowsMessage<c10::Error>(HasSubstr("step: got -1")));
    EXPECT_THAT([&] { load_checkpoint(*run.engine, directory.path(), {.step = 9}); },
                ThrowsMessage<c10::Error>(
                    HasSubstr("got no step 9 with a manifest, expected one of 1, 2;")));
    EXPECT_TRUE(load_checkpoint(*run.engine, directory.path(), {.step = 1}).has_value());
  });
}

TEST_P(EngineCheckpoint, StepsThatOneRankDoesNotSeeAreNoReasonToBeginAnew) {
  const int ranks = std::max(world(), 2);
  const TemporaryDirectory directory, other;
  const Configuration configuration = configuration_of(Strategy::kZero1);
  save_after(1, ranks, "OddMlp", configuration, directory.path());
  for (const int blind : {0, ranks - 1}) {
    run_ranks(ranks, [&](std::shared_ptr<ProcessGroup> group) {
      const std::string& seen = group->rank() == blind ? other.path() : directory.path();
      const SavedRank run(std::move(group), "OddMlp", configuration, 77);
      EXPECT_THAT(
          [&] { load_checkpoint(*run.engine, seen); },
          ThrowsMessage<c10::Error>(AllOf(HasSubstr("none on rank " + std::to_string(blind)),
                                          HasSubstr("that all ranks share"))));
      run.train(0, 1);
    });
  }
}

TEST_P(EngineCheckpoint, FallsBackFromADamagedStepAndSaysSo) {
  const TemporaryDirectory directory;
  const Configuration configuration = configuration_of(Strategy::kZero3);
  for (const int steps : {1, 2}) {
    save_after(steps, world(), "OddMlp", configuration, directory.path());
  }
  const int last = world() - 1;
  flip_a_byte_near_the_end(file_of(directory.path(), 2, last, world()));
  const StateDict expected =
      saved_after(1, world(), "OddMlp", configuration, StateScope::kEveryRank).back();
  const States states = on_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "OddMlp", configuration, 5);
    const auto exactly = [&] { load_checkpoint(*run.engine, directory.path(), {.step = 2}); };
    EXPECT_THAT(exactly, ThrowsMessage<c10::Error>(HasSubstr("/step-2/")));
    const auto loaded = load_checkpoint(*run.engine, directory.path());
    EXPECT_TRUE(loaded.has_value() && loaded->step == 1);
    EXPECT_THAT(loaded->rejected,
                ElementsAre(AllOf(StartsWith("[checkpoint] step-2 is not used: "),
                                  HasSubstr(file_of(directory.path(), 2, last, world())))));
    StateDict state = run.engine->state_dict(StateScope::kEveryRank);
    run.train(1, 2);
    save_checkpoint(*run.engine, directory.path());
    EXPECT_THAT([&] { save_checkpoint(*run.engine, directory.path()); },
                ThrowsMessage<c10::Error>(HasSubstr("step-2")));
    return state;
  });
  EXPECT_EQ(bit_differences(states.back(), expected), "");
  EXPECT_THAT(names_in(directory.path()),
              ElementsAre("lock", "step-1", "step-2", StartsWith("step-2.damaged-")));

  flip_a_byte_near_the_end(file_of(directory.path(), 2, last, world()));
  flip_a_byte_near_the_end(file_of(directory.path(), 1, 0, world()));
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "OddMlp", configuration, 3);
    const auto load = [&] { load_checkpoint(*run.engine, directory.path()); };
    EXPECT_THAT(load, ThrowsMessage<c10::Error>(
                          AllOf(HasSubstr("got no step that is whole"), HasSubstr("step-1 is not"),
                                HasSubstr("step-2 is not"), HasSubstr("nothing was changed"))));
    run.train(0, 1);
  });
}

TEST_P(EngineCheckpoint, Case61_AnotherModelIsRefusedAndNotSearchedForInOlderSteps) {
  const TemporaryDirectory directory;
  const Configuration configuration = configuration_of(Strategy::kZero1);
  for (const int steps : {1, 2}) {
    save_after(steps, world(), "OddMlp", configuration, directory.path());
  }
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "TiedMlp", configuration, 3);
    const auto load = [&] { load_checkpoint(*run.engine, directory.path()); };
    EXPECT_THAT(load, ThrowsMessage<c10::Error>(
                          AllOf(HasSubstr("nothing was changed"), HasSubstr("missing"))));
    run.train(0, 1);
  });
}

TEST_P(EngineCheckpoint, WhatCannotBeSavedIsRefusedByAllAndTrainingGoesOn) {
  const TemporaryDirectory directory;
  const Configuration configuration = configuration_of(Strategy::kZero3);
  const StateDict expected =
      saved_after(3, world(), "OddMlp", configuration, StateScope::kEveryRank).back();
  const std::string file = directory.path() + "/file";
  std::ofstream(file) << "no directory";
  const std::string runs = directory.path() + "/runs";
  const States states = on_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const bool is_last = group->rank() == group->size() - 1;
    const SavedRank run(std::move(group), "OddMlp", configuration, 3);
    run.train(0, 1);
    const auto into_a_file = [&] { save_checkpoint(*run.engine, file); };
    EXPECT_THAT(into_a_file,
                ThrowsMessage<c10::Error>(AllOf(HasSubstr("[checkpoint] "), HasSubstr(file))));
    const auto nowhere = [&] { save_checkpoint(*run.engine, directory.path() + "/a/b/c"); };
    EXPECT_THAT(nowhere, ThrowsMessage<c10::Error>(HasSubstr("/a/b")));
    save_checkpoint(*run.engine, runs);
    const auto again = [&] { save_checkpoint(*run.engine, runs); };
    EXPECT_THAT(again, ThrowsMessage<c10::Error>(HasSubstr("step-1")));
    run.train(1, 2);
    SaveOptions options;
    if (is_last) options.extras.rank_tensors["a\nb"] = torch::zeros({1});
    const auto misnamed = [&] { save_checkpoint(*run.engine, runs, options); };
    EXPECT_THAT(misnamed,
                ThrowsMessage<c10::Error>(HasSubstr("rank " + std::to_string(world() - 1))));
    run.train(2, 3);
    return run.engine->state_dict(StateScope::kEveryRank);
  });
  EXPECT_EQ(bit_differences(states.back(), expected), "");
  EXPECT_THAT(names_in(runs), ElementsAre("lock", "step-1")) << "nothing is left of step 2";
}

TEST(EngineCheckpointNegativeControl, WhatTheComparisonsMustCatch) {
  const TemporaryDirectory directory;
  const Configuration configuration = configuration_of(Strategy::kZero3);
  const StateDict expected =
      saved_after(4, 3, "OddMlp", configuration, StateScope::kEveryRank).back();
  save_after(2, 3, "OddMlp", configuration, directory.path());
  const StateDict other = on_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
                            const SavedRank run(std::move(group), "OddMlp", configuration, 77);
                            load_checkpoint(*run.engine, directory.path());
                            run.train(3, 4);
                            return run.engine->state_dict(StateScope::kEveryRank);
                          }).back();
  EXPECT_THAT(bit_differences(other, expected), HasSubstr("engine.steps")) << "a step less";
}

}  // namespace
}  // namespace tessera::internal::testing
