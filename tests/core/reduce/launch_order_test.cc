#include "tessera/core/reduce/launch_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tessera/core/reduce/reducer.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/recording_group.h"

namespace tessera::internal {
namespace {

using ::testing::ElementsAre;

std::vector<size_t> taken(LaunchOrder& order) {
  std::vector<size_t> units;
  order.begin_micro_step();
  while (order.has_next()) {
    EXPECT_EQ(order.next(), order.next());
    units.push_back(order.take());
  }
  return units;
}

TEST(LaunchOrder, IsThePlansUntilItIsSettled) {
  LaunchOrder order(3, /*is_learned=*/true);
  EXPECT_THAT(taken(order), ElementsAre(0, 1, 2));
  order.begin_micro_step();
  order.completed(2);
  order.completed(0);
  EXPECT_THAT(order.positions(), ElementsAre(2, 0, 1));
  order.settle(order.positions());
  EXPECT_THAT(taken(order), ElementsAre(2, 0, 1)) << "what was not complete comes last";
}

TEST(LaunchOrder, IsSettledOnce) {
  LaunchOrder order(3, /*is_learned=*/true);
  order.settle({3, 2, 1});
  EXPECT_TRUE(order.positions().empty());
  order.completed(1);
  order.settle({1, 2, 3});
  EXPECT_THAT(taken(order), ElementsAre(2, 1, 0));
}

TEST(LaunchOrder, KeepsThePlansOrderOfWhatNobodyCompleted) {
  LaunchOrder order(4, /*is_learned=*/true);
  order.settle({0, 0, 1, 0});
  EXPECT_THAT(taken(order), ElementsAre(2, 0, 1, 3));
  LaunchOrder nothing(0, /*is_learned=*/true);
  EXPECT_FALSE(nothing.has_next());
}

TEST(LaunchOrder, IsNotLearnedWhereItShallNotBe) {
  LaunchOrder order(2, /*is_learned=*/false);
  order.completed(1);
  EXPECT_TRUE(order.positions().empty());
  order.settle({2, 1});
  EXPECT_THAT(taken(order), ElementsAre(0, 1));
}

// --- In a reducer ---

/// One unit per parameter; tags of reductions in the order of their launches.
struct OrderedRank {
  OrderedRank(std::shared_ptr<ProcessGroup> world, const Degrees& degrees,
              const Reducer::Setting& setting = {})
      : group(std::make_shared<testing::RecordingGroup>(std::move(world),
                                                        std::make_shared<testing::Recording>())),
        table({{"a", parameter()}, {"b", parameter()}, {"c", parameter()}}),
        plan(table, {{"a", {0}}, {"b", {1}}, {"c", {2}}}, group->size()),
        slices(degrees, group->size(), group->rank()),
        reducer(*group, table, plan, slices, setting, meter, history, /*trace=*/nullptr) {}

  static at::Tensor parameter() { return at::zeros({130}).set_requires_grad(true); }

  /// What is reduced when gradients come for these parameters, in this order, and by the end.
  std::vector<std::string> micro_step(const std::vector<size_t>& arrivals) {
    group->recording()->clear();
    reducer.begin_micro_step(Reducer::Mode::kReduce);
    for (const size_t index : arrivals) {
      reducer.receive(index, at::full({130}, 1.5 * static_cast<double>(index + 1)));
    }
    before_end = launched();
    reducer.end_micro_step();
    return launched();
  }
  std::vector<std::string> launched() const {
    std::vector<std::string> tags;
    for (const auto& call : group->recording()->calls()) {
      if (call.tag == "a" || call.tag == "b" || call.tag == "c") tags.push_back(call.tag);
    }
    return tags;
  }

  std::shared_ptr<testing::RecordingGroup> group;
  MemoryMeter meter;
  RollingHash history;
  ParameterTable table;
  UnitPlan plan;
  SliceMap slices;
  Reducer reducer;
  std::vector<std::string> before_end;  ///< launched before the last micro-step ended
};

TEST(LaunchOrderInReducer, IsThatOfRankZerosFirstBackward) {
  for (const int world : {1, 2, 3}) {
    for (const Degrees& degrees : {Degrees{1, 1, 1}, Degrees{1, world, world}}) {
      testing::run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
        OrderedRank rank(std::move(group), degrees);
        const bool is_first = rank.group->rank() == 0;
        // Another order on the other ranks, which is not asked for.
        EXPECT_THAT(
            rank.micro_step(is_first ? std::vector<size_t>{2, 0, 1} : std::vector<size_t>{1, 2, 0}),
            ElementsAre("a", "b", "c"));
        EXPECT_THAT(rank.micro_step({2, 0, 1}), ElementsAre("c", "a", "b"));
        EXPECT_THAT(rank.before_end, ElementsAre("c", "a", "b"));
        EXPECT_THAT(rank.micro_step({1, 2, 0}), ElementsAre("c", "a", "b")) << "once";
      });
    }
  }
}

TEST(LaunchOrderInReducer, PutsWhatRankZeroDidNotCompleteLast) {
  testing::run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    OrderedRank rank(std::move(world), {1, 3, 3});
    const bool is_first = rank.group->rank() == 0;
    rank.micro_step(is_first ? std::vector<size_t>{1} : std::vector<size_t>{2, 1, 0});
    EXPECT_THAT(rank.micro_step({2, 1, 0}), ElementsAre("b", "a", "c"));
  });
}

TEST(LaunchOrderInReducer, IsThePlansWithoutTheOptionAndWhereRanksAgreeInTheStep) {
  testing::run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    using Agreement = Reducer::Setting::Agreement;
    for (const Reducer::Setting& setting :
         {Reducer::Setting{.learns_order = false}, {.agreement = Agreement::kInStep}}) {
      OrderedRank rank(world, {1, 1, 1}, setting);
      for (int i = 0; i < 2; ++i) {
        EXPECT_THAT(rank.micro_step({2, 1, 0}), ElementsAre("a", "b", "c"));
      }
    }
  });
}

TEST(LaunchOrderInReducer, DoesNotChangeBits) {
  testing::run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    OrderedRank learned(world, {1, 3, 3});
    OrderedRank fixed(world, {1, 3, 3}, {.learns_order = false});
    for (OrderedRank* rank : {&learned, &fixed}) {
      for (int i = 0; i < 3; ++i) rank->micro_step({2, 1, 0});
    }
    for (size_t unit = 0; unit < 3; ++unit) {
      EXPECT_TRUE(at::equal(learned.reducer.gradient(unit), fixed.reducer.gradient(unit)));
    }
    EXPECT_NE(learned.history.value(), fixed.history.value()) << "the control: orders differ";
  });
}

}  // namespace
}  // namespace tessera::internal
