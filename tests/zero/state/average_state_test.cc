#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/support/state_streams.h"
#include "tessera/tests/zero/state/saved_rank.h"

// The average of the weights in a run's state: saved and loaded with it, between any two
// configurations and worlds.
namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Configuration averaging_every(Configuration configuration, int64_t every) {
  configuration.average = WeightAverage{.every = every};
  return configuration;
}

/// The state of a run that loads `states` over other values and trains steps [begin, end).
StateDict averaged_on(const States& states, int begin, int end, const std::string& model,
                      const Configuration& configuration) {
  return on_ranks(static_cast<int>(states.size()),
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

States shared_out(States states, int world) {
  States shares(static_cast<size_t>(world));
  for (size_t rank = 0; rank < states.size(); ++rank) {
    shares[rank % shares.size()].merge(std::move(states[rank]));
  }
  return shares;
}

class AverageState : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(World, AverageState, ::testing::ValuesIn(spanning_worlds()));

/// Each pair of configurations gets one of the models.
TEST_P(AverageState, GoesOnUnderAnyConfigurationBitForBit) {
  const std::vector<const char*> models = {"OddMlp",           "FrozenLayers",   "ChannelsLast",
                                           "UnusedEverywhere", "EmptyParameter", "TinyAndScalar"};
  std::vector<Configuration> configurations = configurations_at(world());
  for (Configuration& configuration : configurations) {
    configuration = averaging_every(configuration, 2);
  }
  for (size_t m = 0; m < models.size(); ++m) {
    SCOPED_TRACE(models[m]);
    const StateDict expected =
        saved_after(5, world(), models[m], configurations.front(), StateScope::kEveryRank).back();
    EXPECT_EQ(expected.entries.at("engine.averaged_updates").tensor().item<int64_t>(), 3);
    for (size_t from = 0; from < configurations.size(); ++from) {
      const States states =
          saved_after(2, world(), models[m], configurations[from], StateScope::kSharded);
      for (size_t to = 0; to < configurations.size(); ++to) {
        if ((from + to) % models.size() != m) continue;
        EXPECT_EQ(
            bit_differences(averaged_on(states, 2, 5, models[m], configurations[to]), expected), "")
            << configurations[from] << " to " << configurations[to];
      }
    }
  }
}

/// Each pair of configurations gets one of the precisions, and each configuration both.
TEST_P(AverageState, LoadsIntoAnyNumberOfRanksAlsoOverMasters) {
  for (const int other : spanning_worlds()) {
    const std::vector<Configuration> sources = configurations_at(other);
    for (const bool is_narrow : {false, true}) {
      const auto made = [&](const Configuration& configuration) {
        return averaging_every(is_narrow ? in_bfloat16(configuration) : configuration, 1);
      };
      for (size_t s = 0; s < sources.size(); ++s) {
        const Configuration from = made(sources[s]);
        const StateDict expected =
            saved_after(3, other, "ChannelsLast", from, StateScope::kEveryRank).front();
        const States shards =
            shared_out(saved_after(3, other, "ChannelsLast", from, StateScope::kSharded), world());
        const std::vector<Configuration> targets = configurations_at(world());
        for (size_t t = (s + (is_narrow ? 1 : 0)) % 2; t < targets.size(); t += 2) {
          const Configuration to = made(targets[t]);
          EXPECT_EQ(bit_differences(averaged_on(shards, 3, 3, "ChannelsLast", to), expected), "")
              << from << " at " << other << " to " << to;
        }
      }
    }
  }
}

TEST_P(AverageState, IsRefusedByARunWithoutOneAndTheOtherWayRound) {
  for (const Configuration& without : configurations_at(world())) {
    const Configuration with = averaging_every(without, 1);
    const auto message = [&](const StateDict& state, const Configuration& into, bool streams) {
      std::string first;
      run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
        const SavedRank run(std::move(group), "OddMlp", into, 77);
        run.train(0, 1);
        const uint64_t before = parameter_hash(*run.engine);
        StateReader source(state);
        const std::string own = message_of(
            [&] { streams ? run.engine->read_state(source) : run.engine->load_state_dict(state); });
        EXPECT_EQ(parameter_hash(*run.engine) == before, own != kNothingThrown);
        run.train(1, 2);
        if (run.world->rank() == 0) first = own;
      });
      return first;
    };
    const StateDict averaged =
        saved_after(2, world(), "OddMlp", with, StateScope::kEveryRank).back();
    const StateDict plain =
        saved_after(2, world(), "OddMlp", without, StateScope::kEveryRank).back();
    for (const bool streams : {false, true}) {
      EXPECT_THAT(message(plain, with, streams),
                  AllOf(HasSubstr("'optimizer.layer0.weight.average': missing"),
                        HasSubstr("The state has no average of weights, and this run keeps one "
                                  "(Options::average); load it into an engine without")));
      EXPECT_THAT(message(averaged, without, streams),
                  AllOf(HasSubstr("'optimizer.layer0.weight.average': got an entry that this run "
                                  "does not have"),
                        HasSubstr("The state has an average of weights, and this run keeps none; "
                                  "set Options::average")));
      EXPECT_EQ(message(averaged, with, streams), kNothingThrown) << "the control";
    }
  }
}

TEST_P(AverageState, HasEntriesForTrainableParametersOnly) {
  for (const Configuration& configuration : configurations_at(world())) {
    const StateDict state = saved_after(2, world(), "FrozenLayers",
                                        averaging_every(configuration, 1), StateScope::kEveryRank)
                                .back();
    int64_t averages = 0;
    for (const auto& [name, entry] : state.entries) averages += name.ends_with(".average") ? 1 : 0;
    EXPECT_EQ(averages, 3) << configuration;  // two weights and a bias
    EXPECT_EQ(state.entries.at("optimizer.layer0.weight.average").sizes,
              state.entries.at("model.layer0.weight").sizes);
    EXPECT_FALSE(state.entries.contains("optimizer.layer1.weight.average"));
  }
}

/// A negative count is refused.
TEST(AverageStateErrors, AreFoundInTheCount) {
  const Configuration configuration = averaging_every(configuration_of(Strategy::kDdp), 1);
  StateDict state = saved_after(2, 1, "OddMlp", configuration, StateScope::kEveryRank).back();
  state.entries.at("engine.averaged_updates").pieces[0].values.fill_(-1);
  run_ranks(1, [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "OddMlp", configuration, 3);
    EXPECT_THAT([&] { run.engine->load_state_dict(state); },
                ThrowsMessage<c10::Error>(
                    HasSubstr("'engine.averaged_updates': got -1, expected at least 0")));
  });
}

}  // namespace
}  // namespace tessera::internal::testing
