#include "tessera/core/reduce/reducer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/recording_group.h"

namespace tessera::internal {
namespace {

using ::testing::ElementsAre;
using Mode = Reducer::Mode;

constexpr int64_t kNumel = 256;

/// In the order of backward: reversed registration order.
std::vector<UnitPlan::Membership> one_bucket_each(const ParameterTable& table) {
  std::vector<UnitPlan::Membership> buckets;
  for (size_t i = table.size(); i-- > 0;) {
    buckets.push_back({"bucket " + std::to_string(buckets.size()), {i}});
  }
  return buckets;
}

/// Three parameters in three units: the last one registered is unit 0.
struct Rig {
  Rig(std::shared_ptr<ProcessGroup> world, Strategy strategy)
      : group(std::make_shared<testing::RecordingGroup>(std::move(world),
                                                        std::make_shared<testing::Recording>())),
        table({{"a", parameter()}, {"b", parameter()}, {"c", parameter()}}),
        plan(table, one_bucket_each(table), group->size()),
        slices(degrees_of(strategy, group->size()), group->size(), group->rank()),
        reducer(*group, table, plan, slices, {.on_release = BufferPool::OnRelease::kPoison}, meter,
                history,
                /*trace=*/nullptr) {
    group->recording()->clear();
  }

  static Degrees degrees_of(Strategy strategy, int world) {
    if (strategy == Strategy::kZero1) return {1, 1, world};
    if (strategy == Strategy::kZero2) return {1, world, world};
    return {1, 1, 1};
  }
  static at::Tensor parameter() { return at::zeros({kNumel}).set_requires_grad(true); }
  void receive(size_t index, double value) { reducer.receive(index, at::full({kNumel}, value)); }

  /// Tags of the reductions so far.
  std::vector<std::string> reduced_tags() const {
    std::vector<std::string> tags;
    for (const auto& call : group->recording()->calls()) {
      if (call.op != "all_gather") tags.push_back(call.tag);
    }
    return tags;
  }
  /// The reduced gradient of parameter `index`; all elements that this rank keeps must be equal.
  float value(size_t index) {
    const at::Tensor kept = reducer.gradient(plan.place(index).unit);
    EXPECT_EQ(kept.min().item<float>(), kept.max().item<float>());
    return kept[0].item<float>();
  }

  std::shared_ptr<testing::RecordingGroup> group;
  MemoryMeter meter;
  RollingHash history;
  ParameterTable table;
  UnitPlan plan;
  SliceMap slices;
  Reducer reducer;
};

class ReducerTest : public ::testing::TestWithParam<Strategy> {
 protected:
  void on_ranks(int size, const std::function<void(Rig&)>& body) {
    testing::run_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
      Rig rig(std::move(world), GetParam());
      body(rig);
    });
  }
};

TEST_P(ReducerTest, StartsUnitsInThePlansOrderAsSoonAsTheyAreComplete) {
  on_ranks(2, [](Rig& rig) {
    rig.reducer.begin_micro_step(Mode::kReduce);
    rig.receive(1, 1.0);  // unit 1 must wait for unit 0
    EXPECT_TRUE(rig.reduced_tags().empty());
    rig.receive(2, 1.0);  // unit 0: both are reduced
    EXPECT_THAT(rig.reduced_tags(), ElementsAre("bucket 0", "bucket 1"));
    rig.receive(0, 1.0);
    EXPECT_THAT(rig.reduced_tags(), ElementsAre("bucket 0", "bucket 1", "bucket 2"));
    rig.reducer.end_micro_step();
    EXPECT_EQ(rig.reduced_tags().size(), 3u);
  });
}

TEST_P(ReducerTest, AveragesOverRanksAndAddsOverMicroSteps) {
  on_ranks(2, [](Rig& rig) {
    for (int micro = 0; micro < 2; ++micro) {
      rig.reducer.begin_micro_step(Mode::kReduce);
      for (size_t i = 0; i < 3; ++i)
        rig.receive(i, rig.group->rank() * 3.0 + static_cast<double>(i));
      rig.reducer.end_micro_step();
    }
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(rig.value(i), 2.0F * (1.5F + static_cast<float>(i)));
    }
    EXPECT_THAT(rig.reducer.used(), ElementsAre(1, 1, 1));
  });
}

TEST_P(ReducerTest, ContributesZerosForWhatARankDidNotProduce) {
  on_ranks(2, [](Rig& rig) {
    rig.reducer.begin_micro_step(Mode::kReduce);
    if (rig.group->rank() == 1) rig.receive(1, 4.0);
    rig.reducer.end_micro_step();
    EXPECT_EQ(rig.value(1), 2.0F);
    EXPECT_EQ(rig.value(0), 0.0F);
    EXPECT_THAT(rig.reducer.used(), ElementsAre(0, 1, 0));
  });
}

TEST_P(ReducerTest, ReducesTheRoundsOfAParameterOneAfterTheOther) {
  on_ranks(2, [](Rig& rig) {
    rig.reducer.begin_micro_step(Mode::kReduce);
    for (size_t i = 3; i-- > 0;) rig.receive(i, 2.0);
    if (rig.group->rank() == 0) rig.receive(1, 6.0);  // a second firing on one rank only
    rig.reducer.end_micro_step();
    EXPECT_THAT(rig.reduced_tags(), ElementsAre("bucket 0", "bucket 1", "bucket 2", "bucket 1"));
    EXPECT_EQ(rig.value(1), 5.0F);
    EXPECT_EQ(rig.value(0), 2.0F);
  });
}

TEST_P(ReducerTest, SendsNothingWhileItAddsLocally) {
  on_ranks(2, [](Rig& rig) {
    rig.reducer.begin_micro_step(Mode::kAddLocally);
    for (size_t i = 0; i < 3; ++i) rig.receive(i, 1.0);
    rig.receive(0, 1.0);
    rig.reducer.end_micro_step();
    EXPECT_EQ(rig.group->recording()->count(), 0);
    EXPECT_TRUE(rig.reducer.has_local());
    EXPECT_THAT(rig.reducer.local(), ElementsAre(1, 1, 1));
    EXPECT_THAT(rig.reducer.used(), ElementsAre(0, 0, 0));

    rig.reducer.begin_micro_step(Mode::kReduce);
    rig.receive(2, 1.0);  // the others keep their old gradients
    rig.reducer.end_micro_step();
    EXPECT_FALSE(rig.reducer.has_local());
    EXPECT_EQ(rig.value(0), 2.0F);
    EXPECT_EQ(rig.value(1), 1.0F);
    EXPECT_EQ(rig.value(2), 2.0F);
  });
}

TEST_P(ReducerTest, LocalSumsAfterAReducedMicroStepAreAddedToIt) {
  on_ranks(2, [](Rig& rig) {
    rig.reducer.begin_micro_step(Mode::kReduce);
    rig.receive(0, 8.0);
    rig.reducer.end_micro_step();
    rig.reducer.begin_micro_step(Mode::kAddLocally);
    rig.receive(0, 1.0);
    rig.reducer.end_micro_step();
    rig.reducer.begin_micro_step(Mode::kReduce);
    rig.reducer.end_micro_step();
    EXPECT_EQ(rig.value(0), 9.0F);
  });
}

TEST_P(ReducerTest, ForgetsEverythingWhenCleared) {
  on_ranks(2, [](Rig& rig) {
    rig.reducer.begin_micro_step(Mode::kReduce);
    rig.receive(0, std::numeric_limits<double>::infinity());
    rig.reducer.end_micro_step();
    EXPECT_EQ(rig.reducer.non_finite()[0], kNumel);
    rig.reducer.begin_micro_step(Mode::kAddLocally);
    rig.receive(1, 5.0);
    rig.reducer.end_micro_step();
    rig.reducer.clear();
    EXPECT_FALSE(rig.reducer.has_local());
    EXPECT_THAT(rig.reducer.used(), ElementsAre(0, 0, 0));
    EXPECT_THAT(rig.reducer.non_finite(), ElementsAre(0, 0, 0));

    rig.reducer.begin_micro_step(Mode::kReduce);
    rig.receive(0, 1.0);
    rig.reducer.end_micro_step();
    EXPECT_EQ(rig.value(0), 1.0F);
    EXPECT_EQ(rig.value(1), 0.0F);
  });
}

TEST_P(ReducerTest, DropsOneParameter) {
  on_ranks(2, [](Rig& rig) {
    rig.reducer.begin_micro_step(Mode::kReduce);
    for (size_t i = 0; i < 3; ++i) rig.receive(i, 1.0);
    rig.reducer.end_micro_step();
    rig.reducer.drop(1);
    EXPECT_EQ(rig.value(1), 0.0F);
    EXPECT_EQ(rig.value(0), 1.0F);
    EXPECT_THAT(rig.reducer.used(), ElementsAre(1, 0, 1));
  });
}

TEST_P(ReducerTest, RanksThatDifferAllSayWhichOneAndCanGoOn) {
  on_ranks(2, [](Rig& rig) {
    const RollingHash before = rig.history;
    if (rig.group->rank() == 1) rig.history.record(RollingHash::Event::kDrop, 0);
    rig.reducer.begin_micro_step(Mode::kReduce);
    EXPECT_THAT([&] { rig.reducer.end_micro_step(); },
                ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr(
                    "[grad] rank 1 and rank 0 differ in what they reduced or dropped")));
    EXPECT_TRUE(rig.reducer.ranks_differ());
    rig.reducer.clear();
    EXPECT_FALSE(rig.reducer.ranks_differ());
    rig.history = before;
    rig.reducer.begin_micro_step(Mode::kReduce);
    rig.receive(0, 1.0);
    rig.reducer.end_micro_step();
    EXPECT_EQ(rig.value(0), 1.0F);
  });
}

INSTANTIATE_TEST_SUITE_P(, ReducerTest,
                         ::testing::Values(Strategy::kDdp, Strategy::kZero1, Strategy::kZero2),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace tessera::internal
