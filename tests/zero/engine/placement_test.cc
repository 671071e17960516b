#include "tessera/core/options/resolved_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include <c10/util/Exception.h>

#include "tessera/tests/support/configuration.h"

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Placement, IsTheTableOfTheStrategies) {
  for (const int size : {1, 2, 3, 8}) {
    EXPECT_EQ(placement({.strategy = Strategy::kDdp}, size), (Degrees{1, 1, 1}));
    EXPECT_EQ(placement({.strategy = Strategy::kZero1}, size), (Degrees{1, 1, size}));
    EXPECT_EQ(placement({.strategy = Strategy::kZero2}, size), (Degrees{1, size, size}));
    EXPECT_EQ(placement({.strategy = Strategy::kZero3}, size), (Degrees{size, size, size}));
  }
}

/// The degrees that the tests expect of their configurations are the engine's.
TEST(Placement, AgreesWithTheConfigurationsOfTheTests) {
  for (const int world : {1, 2, 3, 4, 6}) {
    for (const Configuration& configuration : configurations_of_world(world)) {
      const Options options = options_of(configuration);
      EXPECT_EQ(placement(options, world), configuration.degrees_at(world)) << configuration;
      const auto resolved = resolve(options, nullptr, {.size = world});
      ASSERT_TRUE(resolved.ok()) << configuration << ": " << resolved.status().message();
      EXPECT_EQ(resolved->degrees, configuration.degrees_at(world)) << configuration;
      const bool is_split =
          (configuration.splits_parameters() && world > 1) || configuration.free_eagerly;
      EXPECT_EQ(resolved->residence == Residence::kSplit, is_split) << configuration;
      EXPECT_EQ(can_share_parameters(resolved->degrees) && resolved->share_parameters,
                configuration.shares_at(world))
          << configuration;
    }
  }
}

TEST(Placement, ResolvesTheRanksAfterForward) {
  const auto resolved = [](const Configuration& configuration) {
    return resolve(options_of(configuration), nullptr, {.size = 6});
  };
  for (const int ranks : {1, 2, 3, 6}) {
    EXPECT_EQ(resolved(resharding(ranks))->reshard_after_forward, ranks);
  }
  EXPECT_EQ(resolved(configuration_of(Strategy::kZero3))->reshard_after_forward, 6);
  EXPECT_THAT(std::string(resolved(resharding(4)).status().message()),
              HasSubstr("reshard_after_forward: got 4"));
}

TEST(Placement, RefusesDegreesThatDoNotDivide) {
  for (const Degrees degrees : {Degrees{2, 3, 6}, Degrees{1, 4, 4}, Degrees{0, 1, 1},
                                Degrees{6, 3, 6}, Degrees{1, -2, 2}}) {
    const Options options{.strategy = Strategy::kHybrid, .degrees = degrees};
    EXPECT_THAT([&] { placement(options, 6); },
                ThrowsMessage<c10::Error>(
                    AllOf(HasSubstr("degrees: got " + to_string(degrees)), HasSubstr("divides"))))
        << to_string(degrees);
  }
}

}  // namespace
}  // namespace tessera::internal::testing
