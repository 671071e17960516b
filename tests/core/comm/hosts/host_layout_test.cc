#include "tessera/core/comm/hosts/host_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/support/message_of.h"

namespace tessera::internal::hosts {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HostLayout, NumbersHostsByTheirFirstRanks) {
  const HostLayout layout({7, 3, 7, 3, 9, 9});
  EXPECT_EQ(layout.ranks(), 6);
  EXPECT_EQ(layout.hosts(), 3);
  EXPECT_EQ(layout.host_of(0), 0);
  EXPECT_EQ(layout.host_of(3), 1);
  EXPECT_EQ(layout.host_of(4), 2);
  EXPECT_EQ(layout.local_of(2), 1);
  EXPECT_THAT(layout.ranks_of(1), ElementsAre(1, 3));
  EXPECT_THAT(layout.column(1), ElementsAre(2, 3, 5));
  EXPECT_EQ(layout.rank_of(2, 1), 5);
  EXPECT_FALSE(layout.is_contiguous());
  const HostLayout part = layout.of({1, 3, 5});
  EXPECT_EQ(part.hosts(), 2);
  EXPECT_THAT(part.ranks_of(0), ElementsAre(0, 1));
  EXPECT_FALSE(part.is_even());
}

TEST(HostLayout, HasTwoLevelsOnSeveralEvenHostsOfSeveralRanks) {
  EXPECT_TRUE(HostLayout({0, 0, 1, 1}).is_two_level());
  EXPECT_FALSE(HostLayout({0, 0, 0}).is_two_level());
  EXPECT_FALSE(HostLayout({0, 1, 2}).is_two_level());
  EXPECT_FALSE(HostLayout({0, 0, 1}).is_two_level());
  EXPECT_FALSE(HostLayout({0, 1, 0, 1}).is_two_level());
}

TEST(HostLayout, SumsAreOneTreeOfPowersOfTwoInOrder) {
  EXPECT_TRUE(HostLayout({0, 0, 1, 1}).sums_are_one_tree());
  EXPECT_TRUE(HostLayout({0, 0, 1, 1, 2, 2, 3, 3}).sums_are_one_tree());
  EXPECT_FALSE(HostLayout({0, 0, 1, 1, 2, 2}).sums_are_one_tree());
  EXPECT_FALSE(HostLayout({0, 0, 0, 1, 1, 1}).sums_are_one_tree());
}

TEST(HostLayout, NeedsRanks) {
  EXPECT_THAT(internal::testing::message_of([] { HostLayout layout({}); }),
              HasSubstr("[hosts] layout: got no ranks"));
}

}  // namespace
}  // namespace tessera::internal::hosts
