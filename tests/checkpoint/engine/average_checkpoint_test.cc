#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/checkpoint.h"
#include "tessera/checkpoints.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/zero/state/saved_rank.h"

// The average of the weights in checkpoints.
namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

Configuration with_average(Configuration configuration) {
  configuration.average = WeightAverage{.decay = 0.9};
  return configuration;
}

class AverageCheckpoint : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(World, AverageCheckpoint, ::testing::ValuesIn(spanning_worlds()));

TEST_P(AverageCheckpoint, GoesOnUnderAnyConfigurationAndWorld) {
  for (const int other : spanning_worlds()) {
    for (const bool is_narrow : {false, true}) {
      const auto made = [&](const Configuration& configuration) {
        return with_average(is_narrow ? in_bfloat16(configuration) : configuration);
      };
      for (const Configuration& from : configurations_at(other)) {
        const TemporaryDirectory directory;
        StateDict expected;
        run_ranks(other, [&](std::shared_ptr<ProcessGroup> group) {
          const SavedRank run(std::move(group), "OddMlp", made(from), 3);
          run.train(0, 3);
          save_checkpoint(*run.engine, directory.path());
          StateDict state = run.engine->state_dict(StateScope::kOneRank);
          if (run.world->rank() == 0) expected = std::move(state);
        });
        for (const Configuration& to : configurations_at(world())) {
          run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
            const SavedRank run(std::move(group), "OddMlp", made(to), 77);
            run.train(0, 1);
            ASSERT_TRUE(load_checkpoint(*run.engine, directory.path()).has_value());
            EXPECT_EQ(bit_differences(run.engine->state_dict(StateScope::kEveryRank), expected), "")
                << from << " at " << other << " to " << to;
          });
        }
      }
    }
  }
}

TEST_P(AverageCheckpoint, IsNotSavedWhileTheModelIsTheAverage) {
  for (const Configuration& configuration : configurations_at(world())) {
    const TemporaryDirectory one;
    const TemporaryDirectory run_of;
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const SavedRank run(std::move(group), "OddMlp", with_average(configuration), 3);
      Checkpoints checkpoints(*run.engine, run_of.path());
      run.train(0, 2);
      const StateDict before = run.engine->state_dict(StateScope::kEveryRank);
      Engine::AverageScope scope = run.engine->begin_average();
      EXPECT_THAT(message_of([&] { save_checkpoint(*run.engine, one.path()); }),
                  HasSubstr("called inside begin_average()"));
      EXPECT_THAT(message_of([&] {
                    checkpoints.save();
                    checkpoints.finish();
                  }),
                  HasSubstr("called inside begin_average()"));
      scope.end();
      save_checkpoint(*run.engine, one.path());
      checkpoints.save();
      checkpoints.finish();
      run.train(2, 3);
      for (const std::string& path : {one.path(), run_of.path()}) {
        ASSERT_TRUE(load_checkpoint(*run.engine, path).has_value());
        EXPECT_EQ(bit_differences(run.engine->state_dict(StateScope::kEveryRank), before), "");
      }
    });
  }
}

TEST_P(AverageCheckpoint, OfARunWithoutOneIsRefusedByName) {
  const Configuration plain = configurations_at(world()).back();
  const TemporaryDirectory directory;
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "OddMlp", plain, 3);
    run.train(0, 2);
    save_checkpoint(*run.engine, directory.path());
  });
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "OddMlp", with_average(plain), 3);
    EXPECT_THAT(message_of([&] { load_checkpoint(*run.engine, directory.path()); }),
                HasSubstr("load it into an engine without Options::average"));
    run.train(0, 1);
  });
}

}  // namespace
}  // namespace tessera::internal::testing
