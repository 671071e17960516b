#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/checkpoint.h"
#include "tessera/checkpoints.h"
#include "tessera/join.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/zero/state/saved_rank.h"

// Checkpoints in a loop over join(): a rank without batches cannot follow a save.
namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

/// Rank r has r + 1 batches, so that rank 0 ends first.
std::vector<int> ragged_batches(int rank) {
  std::vector<int> batches;
  for (int batch = 0; batch <= rank; ++batch) batches.push_back(batch);
  return batches;
}

class SavesInJoin : public ::testing::TestWithParam<Strategy> {
 protected:
  const TemporaryDirectory directory_;
  std::string path() const { return directory_.path() + "/run"; }
};
INSTANTIATE_TEST_SUITE_P(Strategies, SavesInJoin,
                         ::testing::Values(Strategy::kDdp, Strategy::kZero3));

TEST_P(SavesInJoin, AreRefusedByNameOnceARankHasEnded) {
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> world) {
    SavedRank rank(std::move(world), "OddMlp", configuration_of(GetParam()), 3);
    Checkpoints checkpoints(*rank.engine, path(), {.every = 100});
    for (const auto& [name, save] : std::vector<std::pair<std::string, std::function<void()>>>{
             {"Checkpoints::after_step", [&] { (void)checkpoints.after_step(); }},
             {"Checkpoints::save", [&] { checkpoints.save(); }},
             {"save_checkpoint", [&] { save_checkpoint(*rank.engine, path() + "-one"); }},
             {"loading a checkpoint", [&] { load_checkpoint(*rank.engine, path()); }},
             {"a user's call", [&] { rank.engine->begin_call("a user's call"); }}}) {
      std::vector<int> batches = ragged_batches(rank.world->rank());
      EXPECT_THAT(message_of([&, &call = save] {
                    for (const int batch : rank.engine->join(batches)) {
                      rank.loss(batch).backward();
                      rank.engine->step();
                      if (batch > 0) call();
                    }
                  }),
                  HasSubstr(name + ": called while rank 0 has no batches left"));
      rank.engine->zero_grad();
    }
    rank.loss(7).backward();
    EXPECT_TRUE(rank.engine->step().committed) << "the engine goes on";
  });
}

// A rank that follows makes the call in on_step; the others make it after step().
TEST_P(SavesInJoin, WorkWhereRanksThatFollowMakeThemInOnStep) {
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> world) {
    SavedRank rank(std::move(world), "OddMlp", configuration_of(GetParam()), 3);
    Checkpoints checkpoints(*rank.engine, path(), {.every = 1});
    const JoinOptions options{.on_step = [&] { (void)checkpoints.after_step(); }};
    std::vector<int> batches = ragged_batches(rank.world->rank());
    for (const int batch : rank.engine->join(batches, options)) {
      rank.loss(batch).backward();
      rank.engine->step();
      (void)checkpoints.after_step();
    }
    checkpoints.finish();
    EXPECT_EQ(checkpoints.durable_step(), 3);
  });
}

}  // namespace
}  // namespace tessera::internal::testing
