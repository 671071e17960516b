#include "tessera/zero/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <c10/util/Exception.h>

namespace tessera {
namespace {

TEST(Placement, IsTheTableOfTheStrategies) {
  for (const int size : {1, 2, 3, 8}) {
    EXPECT_EQ(placement(Strategy::kDdp, size), (Degrees{1, 1, 1}));
    EXPECT_EQ(placement(Strategy::kZero1, size), (Degrees{1, 1, size}));
    EXPECT_EQ(placement(Strategy::kZero2, size), (Degrees{1, size, size}));
  }
}

TEST(Placement, RefusesWhatIsNotAvailableByName) {
  EXPECT_THAT([] { placement(Strategy::kZero3, 2); },
              ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("zero3")));
}

}  // namespace
}  // namespace tessera
