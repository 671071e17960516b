#include <memory>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/checkpoint.h"
#include "tessera/checkpoints.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/same_bits.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/zero/engine/thawed_rank.h"
#include "tessera/tests/zero/state/saved_rank.h"

// Checkpoints and Engine::set_trainable(): saved before and loaded after it, under any strategy.
namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

bool is_weight_name(std::string_view name) { return name.ends_with("weight"); }
bool is_no_weight_name(std::string_view name) { return !is_weight_name(name); }

class PartialCheckpoints : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(World, PartialCheckpoints, ::testing::ValuesIn(spanning_worlds()));

TEST_P(PartialCheckpoints, OfBeforeAreLoadedBehindAndTheOtherWayRound) {
  for (const Configuration& from : configurations_at(world())) {
    const TemporaryDirectory before;
    const TemporaryDirectory after;
    run_ranks(world(), [&](const std::shared_ptr<ProcessGroup>& group) {
      const ThawedRank run(group, "OddMlp", from, &is_weight_name);
      run.train(0, 2);
      save_checkpoint(*run.engine, before.path());
      run.engine->set_trainable(all_train);
      run.train(2, 3);
      save_checkpoint(*run.engine, after.path());
    });
    const Configuration to = configurations_at(world()).back();
    run_ranks(world(), [&](const std::shared_ptr<ProcessGroup>& group) {
      const ThawedRank run(group, "OddMlp", to, &is_weight_name, 77);
      run.engine->set_trainable(all_train);
      EXPECT_THAT(message_of([&] { load_checkpoint(*run.engine, before.path()); }),
                  AllOf(HasSubstr("'optimizer.layer0.bias.exp_avg': missing"),
                        HasSubstr("PartialState::may_lack")));
      load_checkpoint(*run.engine, before.path(), {.partial = {.may_lack = &is_no_weight_name}});
      run.train(2, 3);
      const StateDict went_on = run.state();
      load_checkpoint(*run.engine, after.path());
      EXPECT_EQ(bit_differences(run.state(), went_on), "");

      run.engine->set_trainable(&is_weight_name);
      EXPECT_THAT(message_of([&] { load_checkpoint(*run.engine, after.path()); }),
                  HasSubstr("PartialState::leaves_out_frozen"));
      load_checkpoint(*run.engine, after.path(), {.partial = {.leaves_out_frozen = true}});
      for (const auto& [name, entry] : run.state().entries) {
        EXPECT_TRUE(have_same_bits(entry.tensor(), went_on.entries.at(name).tensor())) << name;
      }
    });
  }
}

/// Checkpoints keep their own copy while the engine is rebuilt.
TEST_P(PartialCheckpoints, ASaveInTheBackgroundGoesOn) {
  const TemporaryDirectory directory;
  run_ranks(world(), [&](const std::shared_ptr<ProcessGroup>& group) {
    const ThawedRank run(group, "OddMlp", configuration_of(Strategy::kZero3), all_train);
    Checkpoints checkpoints(*run.engine, directory.path(), {.every = 1});
    checkpoints.start_over();
    run.train(0, 1);
    checkpoints.after_step();
    const StateDict saved = run.state();
    run.engine->set_trainable(&is_weight_name);
    run.train(1, 2);
    checkpoints.after_step();
    checkpoints.finish();
    run.engine->set_trainable(all_train);
    checkpoints.load({.step = 1});
    EXPECT_EQ(bit_differences(run.state(), saved), "");
    checkpoints.load({.step = 2, .partial = {.may_lack = &is_no_weight_name}});
    EXPECT_EQ(run.engine->steps(), 2);
  });
}

}  // namespace
}  // namespace tessera::internal::testing
