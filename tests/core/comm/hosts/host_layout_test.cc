#include "tessera/core/comm/hosts/host_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::internal::hosts {
namespace {

using ::testing::ElementsAre;

TEST(HostLayout, CountsHostsAndTheRanksOfEach) {
  const HostLayout layout = HostLayout::of({7, 7, 3, 3, 9, 9}).value();
  EXPECT_EQ(layout.ranks(), 6);
  EXPECT_EQ(layout.hosts, 3);
  EXPECT_EQ(layout.locals, 2);
  EXPECT_EQ(layout.host_of(1), 0);
  EXPECT_EQ(layout.host_of(4), 2);
  EXPECT_EQ(layout.local_of(2), 0);
  EXPECT_EQ(layout.local_of(5), 1);
  EXPECT_EQ(layout.rank_of(2, 1), 5);
  EXPECT_THAT(layout.ranks_of(1), ElementsAre(2, 3));
  EXPECT_THAT(layout.column(1), ElementsAre(1, 3, 5));
}

TEST(HostLayout, IsOfEvenHostsInOrder) {
  EXPECT_FALSE(HostLayout::of({0, 0, 1}).has_value());
  EXPECT_FALSE(HostLayout::of({0, 1, 0, 1}).has_value());
  EXPECT_FALSE(HostLayout::of({0, 0, 1, 1, 0, 0}).has_value());
  EXPECT_FALSE(HostLayout::of({0, 1, 1, 1}).has_value());
}

TEST(HostLayout, HasTwoLevelsOnSeveralHostsOfSeveralRanks) {
  EXPECT_TRUE(HostLayout::of({0, 0, 1, 1})->is_two_level());
  EXPECT_FALSE(HostLayout::of({0, 0, 0})->is_two_level());
  EXPECT_FALSE(HostLayout::of({0, 1, 2})->is_two_level());
}

TEST(HostLayout, SumsAreOneTreeOfPowersOfTwo) {
  EXPECT_TRUE(HostLayout::of({0, 0, 1, 1})->sums_are_one_tree());
  EXPECT_TRUE(HostLayout::of({0, 0, 1, 1, 2, 2, 3, 3})->sums_are_one_tree());
  EXPECT_FALSE(HostLayout::of({0, 0, 1, 1, 2, 2})->sums_are_one_tree());
  EXPECT_FALSE(HostLayout::of({0, 0, 0, 1, 1, 1})->sums_are_one_tree());
}

}  // namespace
}  // namespace tessera::internal::hosts
