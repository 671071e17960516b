#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/support/state_streams.h"
#include "tessera/tests/zero/state/saved_rank.h"

// Engine::write_state() and read_state(): ranks write and read their own parts, and the run
// continues.
namespace tessera::internal::testing {
namespace {

/// The state that the ranks write after `steps` steps.
StateDict written_after(int steps, int world, const std::string& model,
                        const Configuration& configuration) {
  return joined(on_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), model, configuration, 3);
    run.train(0, steps);
    StateCollector sink;
    run.engine->write_state(sink);
    return sink.take();
  }));
}

/// The state of a run that trains a step, reads `whole` and trains steps [begin, end).
StateDict gone_on(const StateDict& whole, int world, int begin, int end, const std::string& model,
                  const Configuration& configuration) {
  return on_ranks(world,
                  [&](std::shared_ptr<ProcessGroup> group) {
                    const SavedRank run(std::move(group), model, configuration, 77);
                    run.train(0, 1);
                    StateReader source(whole);
                    run.engine->read_state(source);
                    run.train(begin, end);
                    return run.engine->state_dict(StateScope::kEveryRank);
                  })
      .back();
}

class EngineStream : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(World, EngineStream, ::testing::ValuesIn(spanning_worlds()));

TEST_P(EngineStream, GoesOnUnderAnyConfigurationBitForBit) {
  size_t turn = 0;
  for (const char* model : {"OddMlp", "BatchNorm", "FrozenLayers", "ChannelsLast", "TiedMlp",
                            "EmptyParameter", "TinyAndScalar"}) {
    SCOPED_TRACE(model);
    size_t turn_of_model = turn++;
    const std::vector<Configuration> configurations = configurations_at(world());
    const StateDict expected =
        saved_after(4, world(), model, configurations.front(), StateScope::kEveryRank).back();
    for (const Configuration& from : configurations) {
      if (!has_turn(turn_of_model++, 2)) continue;
      const StateDict whole = written_after(2, world(), model, from);
      for (const Configuration& to : {from, configurations.back()}) {
        EXPECT_EQ(bit_differences(gone_on(whole, world(), 2, 4, model, to), expected), "")
            << from << " to " << to;
      }
    }
  }
}

TEST_P(EngineStream, ItsEntriesAreKnownBeforehand) {
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "FrozenLayers", configurations_at(world()).back(), 3);
    run.train(0, 1);
    std::vector<std::string> names;
    for (const StateOutline& entry : run.engine->state_entries()) {
      EXPECT_TRUE(entry.ranges.empty());
      names.push_back(entry.name);
    }
    StateCollector sink;
    run.engine->write_state(sink);
    std::vector<std::string> written;
    for (const auto& [name, entry] : sink.take().entries) written.push_back(name);
    EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(written));
  });
}

TEST_P(EngineStream, IsWhatTheStateDictSays) {
  for (const int other : spanning_worlds()) {
    for (Configuration from : configurations_at(other)) {
      from.precision.parameters = at::kBFloat16;
      const StateDict expected =
          saved_after(2, other, "OddMlp", from, StateScope::kEveryRank).front();
      const StateDict whole = written_after(2, other, "OddMlp", from);
      EXPECT_EQ(bit_differences(whole, expected), "") << from;
      Configuration to = configurations_at(world()).back();
      to.precision.parameters = at::kBFloat16;
      EXPECT_EQ(bit_differences(gone_on(whole, world(), 2, 2, "OddMlp", to), expected), "")
          << from << " at " << other << " to " << to;
    }
  }
}

TEST_P(EngineStream, ASinkThatThrowsHarmsNobody) {
  struct Full : StateSink {
    void begin(const std::vector<StateOutline>&) override {}
    void write(size_t, int64_t, const at::Tensor&) override {
      throw std::runtime_error("no space left");
    }
  };
  for (const Configuration& configuration : configurations_at(world())) {
    const StateDict expected =
        saved_after(2, world(), "OddMlp", configuration, StateScope::kEveryRank).back();
    const States states = on_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const bool is_first = group->rank() == 0;
      const SavedRank run(std::move(group), "OddMlp", configuration, 3);
      run.train(0, 1);
      Full full;
      StateCollector collector;
      if (is_first) {
        EXPECT_THROW(run.engine->write_state(full), std::runtime_error);
      } else {
        run.engine->write_state(collector);
      }
      run.train(1, 2);
      return run.engine->state_dict(StateScope::kEveryRank);
    });
    EXPECT_EQ(bit_differences(states.back(), expected), "") << configuration;
  }
}

TEST_P(EngineStream, ASourceThatFailsHalfwayPoisonsEveryRank) {
  const Configuration configuration = configuration_of(Strategy::kZero3);
  const StateDict whole = written_after(1, world(), "OddMlp", configuration);
  int64_t numbers = 0;  // all are read before anything changes
  for (const auto& [name, entry] : whole.entries) numbers += entry.sizes.empty() ? 1 : 0;
  const auto errors = run_ranks_expecting_errors(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const bool is_last = group->rank() == group->size() - 1;
    const SavedRank run(std::move(group), "OddMlp", configuration, 3);
    StateReader source(whole);
    if (is_last) source.fails_after = numbers + 1;
    EXPECT_ANY_THROW(run.engine->read_state(source));
    run.train(1, 2);  // half of the state is from another run
  });
  EXPECT_THAT(errors, ::testing::Each(::testing::HasSubstr("read_state")));
}

TEST(EngineStreamNegativeControl, WhatTheComparisonMustCatch) {
  const Configuration configuration = configuration_of(Strategy::kZero3);
  const StateDict expected =
      saved_after(4, 3, "OddMlp", configuration, StateScope::kEveryRank).back();
  const StateDict whole = written_after(2, 3, "OddMlp", configuration);
  EXPECT_THAT(bit_differences(gone_on(whole, 3, 3, 4, "OddMlp", configuration), expected),
              ::testing::HasSubstr("engine.steps"))
      << "a step less";
}

}  // namespace
}  // namespace tessera::internal::testing
