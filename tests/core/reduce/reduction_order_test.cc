#include "tessera/core/reduce/reduction_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tessera/tests/core/reduce/reduction_rig.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using ::testing::ElementsAre;

std::vector<size_t> taken(ReductionOrder& order) {
  std::vector<size_t> units;
  order.begin_micro_step();
  while (order.has_next()) {
    EXPECT_EQ(order.next(), order.next());
    units.push_back(order.take());
  }
  return units;
}

TEST(ReductionOrder, IsThePlansUntilItIsSettled) {
  ReductionOrder order(3, /*is_learned=*/true);
  EXPECT_THAT(taken(order), ElementsAre(0, 1, 2));
  order.begin_micro_step();
  order.completed(2);
  order.completed(0);
  EXPECT_THAT(order.positions(), ElementsAre(2, 0, 1));
  order.settle(order.positions());
  EXPECT_THAT(taken(order), ElementsAre(2, 0, 1)) << "what was not complete comes last";
}

TEST(ReductionOrder, IsSettledOnce) {
  ReductionOrder order(3, /*is_learned=*/true);
  order.settle({3, 2, 1});
  EXPECT_TRUE(order.positions().empty());
  order.completed(1);
  order.settle({1, 2, 3});
  EXPECT_THAT(taken(order), ElementsAre(2, 1, 0));
}

TEST(ReductionOrder, IsNotSettledByABackwardThatCompletesNothing) {
  ReductionOrder order(3, /*is_learned=*/true);
  order.settle({0, 0, 0});
  EXPECT_EQ(order.positions().size(), 3U);
  order.settle({0, 0, 1});
  EXPECT_THAT(taken(order), ElementsAre(2, 0, 1));
}

TEST(ReductionOrder, KeepsThePlansOrderOfWhatNobodyCompleted) {
  ReductionOrder order(4, /*is_learned=*/true);
  order.settle({0, 0, 1, 0});
  EXPECT_THAT(taken(order), ElementsAre(2, 0, 1, 3));
  ReductionOrder nothing(0, /*is_learned=*/true);
  EXPECT_FALSE(nothing.has_next());
}

TEST(ReductionOrder, IsNotLearnedWhereItShallNotBe) {
  ReductionOrder order(2, /*is_learned=*/false);
  order.completed(1);
  EXPECT_TRUE(order.positions().empty());
  order.settle({2, 1});
  EXPECT_THAT(taken(order), ElementsAre(0, 1));
}

// --- In a reducer ---

/// A rank whose units "ab", "root" and "c" may be completed in any order.
struct OrderedRank {
  OrderedRank(std::shared_ptr<ProcessGroup> world, const Degrees& degrees,
              const Reducer::Setting& setting = {})
      : rig(std::move(world), degrees, {}, at::kFloat, setting) {}

  /// Returns the units reduced in a micro-step in which gradients arrive in this order.
  std::vector<std::string> micro_step(const std::vector<std::string>& arrivals) {
    rig.group->recording()->clear();
    const std::vector<at::Tensor> gradients = testing::random_gradients(rig, 0, 0);
    rig.reducer.begin_micro_step(Reducer::Mode::kReduce);
    for (const std::string& name : arrivals) {
      for (size_t i = 0; i < gradients.size(); ++i) {
        if (rig.plan[rig.plan.place(i).unit].name == name) rig.reducer.receive(i, gradients[i]);
      }
    }
    before_end = launched();
    rig.reducer.end_micro_step();
    return launched();
  }
  std::vector<std::string> launched() const {
    std::vector<std::string> units;
    for (const auto& call : rig.group->recording()->calls()) {
      const bool is_gather = call.op == "all_gather";
      for (size_t unit = 0; unit < rig.plan.trainable_size() && !is_gather; ++unit) {
        if (call.tag == rig.plan[unit].name) units.push_back(call.tag);
      }
    }
    return units;
  }

  testing::ReductionRig rig;
  std::vector<std::string> before_end;  ///< launched before the last micro-step ended
};

using Order = std::vector<std::string>;

TEST(ReductionOrderInReducer, IsThatOfRankZerosFirstBackward) {
  for (const int world : {1, 2, 3}) {
    for (const Degrees& degrees : {Degrees{1, 1, 1}, Degrees{1, world, world}}) {
      testing::run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
        OrderedRank rank(std::move(group), degrees);
        const bool is_first = rank.rig.group->rank() == 0;
        // The other ranks have another order, which does not count.
        EXPECT_THAT(rank.micro_step(is_first ? Order{"c", "ab", "root"} : Order{"root", "c", "ab"}),
                    ElementsAre("ab", "root", "c"));
        EXPECT_THAT(rank.micro_step({"c", "ab", "root"}), ElementsAre("c", "ab", "root"));
        EXPECT_THAT(rank.before_end, ElementsAre("c", "ab", "root"));
        EXPECT_THAT(rank.micro_step({"root", "c", "ab"}), ElementsAre("c", "ab", "root")) << "once";
      });
    }
  }
}

TEST(ReductionOrderInReducer, PutsWhatRankZeroDidNotCompleteLast) {
  testing::run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    OrderedRank rank(std::move(world), {1, 3, 3});
    const bool is_first = rank.rig.group->rank() == 0;
    rank.micro_step(is_first ? Order{"root"} : Order{"c", "root", "ab"});
    EXPECT_THAT(rank.micro_step({"c", "root", "ab"}), ElementsAre("root", "ab", "c"));
  });
}

TEST(ReductionOrderInReducer, IsNotLearnedFromWhatNoSyncLeft) {
  testing::run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    OrderedRank rank(std::move(world), {1, 3, 3});
    EXPECT_THAT(rank.micro_step({}), ElementsAre("ab", "root", "c"));
    rank.micro_step({"c", "root", "ab"});
    EXPECT_THAT(rank.micro_step({"c", "root", "ab"}), ElementsAre("c", "root", "ab"));
  });
}

TEST(ReductionOrderInReducer, IsThePlansWithoutTheOptionAndWhereRanksAgreeInTheStep) {
  testing::run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    using Agreement = Reducer::Setting::Agreement;
    for (const Reducer::Setting& setting :
         {Reducer::Setting{.learns_order = false}, {.agreement = Agreement::kInStep}}) {
      OrderedRank rank(world, {1, 1, 1}, setting);
      for (int i = 0; i < 2; ++i) {
        EXPECT_THAT(rank.micro_step({"c", "root", "ab"}), ElementsAre("ab", "root", "c"));
      }
    }
  });
}

TEST(ReductionOrderInReducer, DoesNotChangeBits) {
  testing::run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    OrderedRank learned(world, {1, 3, 3});
    OrderedRank fixed(world, {1, 3, 3}, {.learns_order = false});
    for (OrderedRank* rank : {&learned, &fixed}) {
      for (int i = 0; i < 3; ++i) rank->micro_step({"c", "root", "ab"});
    }
    for (size_t unit = 0; unit < 3; ++unit) {
      EXPECT_TRUE(at::equal(learned.rig.reducer.gradient(unit), fixed.rig.reducer.gradient(unit)));
    }
    EXPECT_NE(learned.rig.history.value(), fixed.rig.history.value())
        << "the control: orders differ";
  });
}

}  // namespace
}  // namespace tessera::internal
