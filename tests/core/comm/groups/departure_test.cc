#include "tessera/core/comm/groups/departure.h"

#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

TEST(Departure, IsFoundInItsCauseOnly) {
  EXPECT_EQ(departure_cause("rank 1", 7), "rank 1 left the group after 7 collectives");
  EXPECT_EQ(departed_rank(departure_cause("rank 1", 7)), 1);
  EXPECT_EQ(departed_rank(departure_cause("rank 12 of the world", 0)), 12);
  for (const char* const other :
       {"", "rank 1 left the group without sending 'x'",
        "rank x left the group after 7 collectives",
        "rank 1 left group 'world' after 7 collectives", "left the group after 7 collectives",
        "[comm] barrier #4: rank 1 left the group after 7 collectives"}) {
    EXPECT_EQ(departed_rank(other), std::nullopt) << other;
  }
}

}  // namespace
}  // namespace tessera::internal
