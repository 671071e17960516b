#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <torch/torch.h>

#include "tessera/tests/fsdp/gatherer.h"

// Gathers outside training steps: one rank that evaluates, modules gathered on request, and units
// that stay split over fewer ranks after forward. Names with a number are scenarios of
// docs/testing.md.

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// --- Alone ---

/// Trains a step of a split model and of a whole one, which has the same bits.
void train_both(const Gatherer& split, const Gatherer& whole, int step) {
  split.train(step);
  whole.train(step);
}

/// On one host a gather needs no other rank: one rank evaluates, any number of times, while the
/// others do nothing.
TEST(GatheredUnits, OneRankEvaluatesAlone) {
  for (const int who : {0, 2}) {
    on_gatherers(3, blocks_configuration(), [who](Gatherer& rank) {
      const Gatherer whole(rank.world, configuration_of(Strategy::kDdp));
      train_both(rank, whole, 0);
      if (rank.world->rank() == who) {
        for (int step = 1; step < 4; ++step) EXPECT_EQ(rank.evaluate(step), whole.evaluate(step));
      }
      train_both(rank, whole, 1);
      if (rank.world->rank() == who) {
        EXPECT_EQ(rank.evaluate(9), whole.evaluate(9));
        EXPECT_NE(rank.evaluate(9), whole.evaluate(8)) << "the control";
      }
      EXPECT_EQ(parameter_hash(*rank.engine), parameter_hash(*whole.engine));
    });
  }
}

TEST(GatheredUnits, RanksEvaluateOnDifferentBranches) {
  on_gatherers(
      3, apart(configuration_of(Strategy::kZero3)),
      [](Gatherer& rank) {
        const Gatherer whole(rank.world, configuration_of(Strategy::kDdp), "BranchingBlocks");
        for (int step = 0; step < 4; ++step) {
          train_both(rank, whole, step);
          for (int i = 0; i <= rank.world->rank(); ++i) {
            EXPECT_EQ(rank.evaluate(step + i), whole.evaluate(step + i));
          }
        }
        EXPECT_EQ(parameter_hash(*rank.engine), parameter_hash(*whole.engine));
      },
      "BranchingBlocks");
}

// --- On request ---

TEST(GatheredUnits, AGatheredModuleStaysWholeUntilItsScopeEnds) {
  on_gatherers(3, blocks_configuration(), [](Gatherer& rank) {
    const auto block = rank.net->named_modules()["blocks.3"];
    const at::Tensor weight = block->named_parameters()["linear.weight"];
    const at::Tensor expected = weight.detach().clone();
    {
      const auto outer = rank.engine->gather(*block);
      const auto inner = rank.engine->gather(*block);
      rank.evaluate(0);
      EXPECT_EQ(*weight.const_data_ptr<float>(), expected.view(-1)[0].item<float>());
      EXPECT_THROW(rank.net->named_parameters()["blocks.4.linear.weight"].const_data_ptr(),
                   c10::Error);
    }
    EXPECT_THROW(weight.const_data_ptr(), c10::Error);
    EXPECT_THAT([&] { auto scope = rank.engine->gather(torch::nn::LinearImpl(2, 2)); },
                ThrowsMessage<c10::Error>(HasSubstr("gather")));
    {
      const auto all = rank.engine->gather(*rank.net);
      for (const at::Tensor& parameter : rank.net->parameters()) parameter.const_data_ptr();
    }
    rank.train(0);
    parameter_hash(*rank.engine);
  });
}

TEST(GatheredUnits, BackwardAndEvaluationRunInsideAScopeAndAStepDoesNot) {
  on_gatherers(3, blocks_configuration(), [](Gatherer& rank) {
    auto scope = rank.engine->gather(*rank.net->named_modules()["blocks.2"]);
    rank.loss(0).backward();
    EXPECT_THAT([&] { rank.engine->step(); }, ThrowsMessage<c10::Error>(HasSubstr("scope")));
    scope.reset();
    EXPECT_TRUE(rank.engine->step().committed);
    Gatherer untouched(rank.world, blocks_configuration());
    untouched.train(0);
    EXPECT_EQ(parameter_hash(*rank.engine), parameter_hash(*untouched.engine));
  });
}

TEST(GatheredUnits, AScopeMayOutliveItsEngine) {
  on_gatherers(3, blocks_configuration(), [](Gatherer& rank) {
    auto scope = rank.engine->gather(*rank.net);
    auto whole = rank.engine->full_parameters();
    rank.engine.reset();
    scope.reset();
    whole.reset();
    EXPECT_THAT([&] { rank.net->parameters()[0].sum(); },
                ThrowsMessage<c10::Error>(HasSubstr("the engine that could gather them is gone")));
  });
}

// --- Onto fewer ranks ---

TEST(GatheredUnits, Scenario48_AUnitSplitOverFewerRanksAfterForwardIsReadFromThem) {
  on_gatherers(4, blocks_configuration(2), [](Gatherer& rank) {
    rank.train(0);
    rank.recording->clear();
    const at::Tensor loss = rank.loss(1);
    const double forward = rank.recording->sent_bytes("read");
    rank.recording->clear();
    loss.backward();
    const double backward = rank.recording->sent_bytes("read");
    double blocks = 0;
    for (const PlannedUnit& unit : rank.engine->units()) {
      if (unit.kind != UnitKind::kRoot) blocks += static_cast<double>(unit.layout.bytes());
    }
    const double root = static_cast<double>(rank.engine->units().bytes()) - blocks;
    const double last = blocks / 7;
    EXPECT_DOUBLE_EQ(forward, (blocks + root) * 3 / 4);
    // A neighbour that has not freed a unit yet has no second shard of it; then first shards are
    // read, one of which may be this rank's own.
    EXPECT_GE(backward, (blocks - last) / 4);
    EXPECT_LE(backward, (blocks - last) * 3 / 4);
    rank.engine->step();
    const MemoryBytes now = rank.engine->memory().now();
    EXPECT_EQ(now[MemoryClass::kParameters],
              predicted_memory(*rank.engine, 1)[MemoryClass::kParameters]);
    EXPECT_GT(now[MemoryClass::kParameters], rank.engine->units().bytes() / 4);
  });
}

TEST(GatheredUnits, Scenario48_ANumberThatDoesNotDivideIsRefusedByName) {
  for (const int wrong : {0, -1, 3, 5, 8}) {
    const auto errors =
        run_ranks_expecting_errors(4, [&](const std::shared_ptr<ProcessGroup>& group) {
          const Gatherer rank(group, blocks_configuration(wrong));
        });
    for (const std::string& error : errors) {
      EXPECT_THAT(error, HasSubstr(absl::StrCat("reshard_after_forward: got ", wrong)));
    }
  }
}

}  // namespace
}  // namespace tessera::internal::testing
