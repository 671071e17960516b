#include "tessera/core/sched/access_order.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace tessera::internal {
namespace {

using Phase = AccessOrder::Phase;
using ExpectedOrder = std::vector<std::optional<size_t>>;

ExpectedOrder visit(AccessOrder& order, Phase phase, const std::vector<size_t>& units) {
  ExpectedOrder expected;
  for (const size_t unit : units) expected.push_back(order.visit(phase, unit));
  return expected;
}

TEST(AccessOrder, KnowsNothingAtFirstAndTheWholeOrderAfterwards) {
  AccessOrder order;
  EXPECT_EQ(visit(order, Phase::kForward, {0, 1, 2}), ExpectedOrder(3));
  order.begin();
  EXPECT_EQ(visit(order, Phase::kForward, {0, 1, 2}), (ExpectedOrder{1, 2, std::nullopt}));
}

TEST(AccessOrder, TellsTheUsesOfAUnitApart) {
  AccessOrder order;
  visit(order, Phase::kForward, {0, 1, 0, 2});
  order.begin();
  EXPECT_EQ(visit(order, Phase::kForward, {0, 1, 0, 2}), (ExpectedOrder{1, 0, 2, std::nullopt}));
}

TEST(AccessOrder, LeadsFromForwardIntoBackwardButNotThroughEvaluation) {
  AccessOrder order;
  const auto step = [&order] {
    ExpectedOrder expected = visit(order, Phase::kForward, {0, 1, 2});
    const ExpectedOrder backward = visit(order, Phase::kBackward, {1, 0});
    expected.insert(expected.end(), backward.begin(), backward.end());
    return expected;
  };
  step();
  order.begin();
  EXPECT_EQ(step(), (ExpectedOrder{1, 2, 1, 0, std::nullopt}));
  order.begin();
  EXPECT_EQ(visit(order, Phase::kForwardWithoutGrad, {0, 1}), ExpectedOrder(2));
  EXPECT_EQ(step(), (ExpectedOrder{1, 2, 1, 0, std::nullopt}));
}

TEST(AccessOrder, FollowsABranchThatChanges) {
  AccessOrder order;
  visit(order, Phase::kForward, {0, 1, 3});
  order.begin();
  EXPECT_EQ(visit(order, Phase::kForward, {0, 2, 3}),
            (ExpectedOrder{1, std::nullopt, std::nullopt}));
  order.begin();
  EXPECT_EQ(visit(order, Phase::kForward, {0, 2, 3}), (ExpectedOrder{2, 3, std::nullopt}));
}

/// An evaluation of any length may run between two steps.
TEST(AccessOrder, DoesNotGrowForEver) {
  AccessOrder order;
  std::optional<size_t> expected;
  for (int i = 0; i < 100000; ++i) {
    expected = order.visit(Phase::kForwardWithoutGrad, static_cast<size_t>(i % 3));
  }
  EXPECT_EQ(expected, std::optional<size_t>(1));
}

}  // namespace
}  // namespace tessera::internal
