#include "tessera/core/layout/slice_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

namespace tessera::internal {
namespace {

using Axis = SliceMap::Axis;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr Axis kAxes[] = {Axis::kParameters, Axis::kGradients, Axis::kOptimizer, Axis::kReplicas};

struct Configuration {
  int world;
  Degrees degrees;
};

/// Every p | g | o | N of worlds up to 12.
std::vector<Configuration> all_configurations() {
  std::vector<Configuration> configurations;
  for (int world = 1; world <= 12; ++world) {
    for (int o = 1; o <= world; ++o) {
      for (int g = 1; g <= o; ++g) {
        for (int p = 1; p <= g; ++p) {
          if (world % o == 0 && o % g == 0 && g % p == 0)
            configurations.push_back({world, {p, g, o}});
        }
      }
    }
  }
  return configurations;
}

std::vector<SliceMap> maps_of(const Configuration& configuration) {
  std::vector<SliceMap> maps;
  for (int rank = 0; rank < configuration.world; ++rank)
    maps.emplace_back(configuration.degrees, configuration.world, rank);
  return maps;
}

bool contains(Range outer, Range inner) {
  return outer.begin <= inner.begin && inner.end() <= outer.end();
}

TEST(SliceMap, WritesEveryRankInItsCoordinates) {
  for (const Configuration& configuration : all_configurations()) {
    for (const SliceMap& map : maps_of(configuration)) {
      const auto [p, g, o] = configuration.degrees;
      EXPECT_EQ(map.rank(),
                map.coordinate(Axis::kParameters) + p * map.coordinate(Axis::kGradients) +
                    g * map.coordinate(Axis::kOptimizer) + o * map.coordinate(Axis::kReplicas));
      for (const Axis axis : kAxes) {
        EXPECT_GE(map.coordinate(axis), 0);
        EXPECT_LT(map.coordinate(axis), map.extent(axis));
      }
    }
  }
}

TEST(SliceMap, NestsEachSliceInTheOneBeforeIt) {
  for (const Configuration& configuration : all_configurations()) {
    const FlatLayout layout(c10::kFloat, {100, 7, 1000}, configuration.world);
    for (const SliceMap& map : maps_of(configuration)) {
      EXPECT_TRUE(contains(map.parameters(layout), map.gradients(layout)));
      EXPECT_TRUE(contains(map.gradients(layout), map.optimizer(layout)));
      EXPECT_TRUE(contains(map.optimizer(layout), map.atom(layout)));
      EXPECT_EQ(map.parameters(layout).numel * configuration.degrees.parameters, layout.numel());
      EXPECT_EQ(map.gradients(layout).numel * configuration.degrees.gradients, layout.numel());
      EXPECT_EQ(map.optimizer(layout).numel * configuration.degrees.optimizer, layout.numel());
      EXPECT_EQ(map.atom(layout).numel, layout.slice_numel());
    }
  }
}

TEST(SliceMap, SharesEachKindOfStateOutEvenly) {
  for (const Configuration& configuration : all_configurations()) {
    std::map<int, int> parameters, gradients, optimizer;
    std::set<int> atoms;
    for (const SliceMap& map : maps_of(configuration)) {
      ++parameters[map.parameter_slice()];
      ++gradients[map.gradient_slice()];
      ++optimizer[map.optimizer_slice()];
      atoms.insert(map.atom());
    }
    const auto expect_even = [&](const std::map<int, int>& holders, int degree) {
      EXPECT_EQ(holders.size(), static_cast<size_t>(degree));
      for (const auto& [slice, count] : holders) EXPECT_EQ(count, configuration.world / degree);
    };
    expect_even(parameters, configuration.degrees.parameters);
    expect_even(gradients, configuration.degrees.gradients);
    expect_even(optimizer, configuration.degrees.optimizer);
    EXPECT_EQ(atoms.size(), static_cast<size_t>(configuration.world));
  }
}

/// Reduce, gather and all-gather of updates rely on this: in such a group the slices are a
/// permutation, and ascending ranks are adjacent where data is gathered in place.
TEST(SliceMap, PeersHoldTheSlicesThatCollectivesNeed) {
  for (const Configuration& configuration : all_configurations()) {
    const std::vector<SliceMap> maps = maps_of(configuration);
    for (const SliceMap& map : maps) {
      const std::vector<int> replicas = map.peers({Axis::kReplicas});
      for (size_t i = 0; i < replicas.size(); ++i) {
        EXPECT_EQ(maps[replicas[i]].atom(),
                  map.optimizer_slice() * map.extent(Axis::kReplicas) + static_cast<int>(i));
      }
      const std::vector<int> owners = map.peers({Axis::kParameters});
      for (size_t i = 0; i < owners.size(); ++i) {
        EXPECT_EQ(maps[owners[i]].parameter_slice(), static_cast<int>(i));
      }
      std::set<int> gradient_slices;
      for (const int peer : map.peers({Axis::kParameters, Axis::kGradients})) {
        gradient_slices.insert(maps[peer].gradient_slice());
      }
      EXPECT_EQ(gradient_slices.size(), static_cast<size_t>(configuration.degrees.gradients));
      std::set<int> atoms;
      for (const int peer : map.peers({Axis::kOptimizer, Axis::kReplicas})) {
        EXPECT_EQ(maps[peer].gradient_slice(), map.gradient_slice());
        atoms.insert(maps[peer].atom() % (configuration.world / configuration.degrees.gradients));
      }
      EXPECT_EQ(atoms.size(),
                static_cast<size_t>(configuration.world / configuration.degrees.gradients));
      // The all-gather of updates needs all optimizer slices inside the parameter slice, over the
      // gradient and optimizer axes.
      std::set<int> optimizer_slices;
      for (const int peer : map.peers({Axis::kGradients, Axis::kOptimizer})) {
        EXPECT_EQ(maps[peer].parameter_slice(), map.parameter_slice());
        optimizer_slices.insert(maps[peer].optimizer_slice());
      }
      EXPECT_EQ(optimizer_slices.size(), static_cast<size_t>(configuration.degrees.optimizer /
                                                             configuration.degrees.parameters));
    }
  }
}

TEST(SliceMap, ColorsAreEqualExactlyAmongPeers) {
  const std::vector<std::vector<Axis>> choices = {{Axis::kParameters},
                                                  {Axis::kReplicas},
                                                  {Axis::kParameters, Axis::kGradients},
                                                  {Axis::kOptimizer, Axis::kReplicas}};
  for (const Configuration& configuration : all_configurations()) {
    for (const SliceMap& map : maps_of(configuration)) {
      for (const std::vector<Axis>& axes : choices) {
        const std::vector<int> colors = map.colors(axes);
        EXPECT_EQ(colors, SliceMap(configuration.degrees, configuration.world, 0).colors(axes))
            << "the same on all";
        const std::vector<int> peers = map.peers(axes);
        EXPECT_TRUE(std::is_sorted(peers.begin(), peers.end()));
        int size = 1;
        for (const Axis axis : axes) size *= map.extent(axis);
        EXPECT_EQ(peers.size(), static_cast<size_t>(size));
        EXPECT_EQ(colors[static_cast<size_t>(map.rank())], peers.front());
      }
    }
  }
}

TEST(SliceMap, NamedStrategiesAreConfigurationsOfIt) {
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(SliceMap({1, 1, 1}, 3, rank).coordinate(Axis::kReplicas), rank);    // ddp
    EXPECT_EQ(SliceMap({1, 1, 3}, 3, rank).coordinate(Axis::kOptimizer), rank);   // zero1
    EXPECT_EQ(SliceMap({1, 3, 3}, 3, rank).coordinate(Axis::kGradients), rank);   // zero2
    EXPECT_EQ(SliceMap({3, 3, 3}, 3, rank).coordinate(Axis::kParameters), rank);  // zero3
  }
}

TEST(SliceMap, KnowsTheHybridOfTwoByTwo) {
  // HSDP: 2 ranks share the parameters, 2 such pairs.
  const SliceMap hsdp({2, 2, 2}, 4, 3);
  EXPECT_EQ(hsdp.parameter_slice(), 1);
  EXPECT_EQ(hsdp.optimizer_slice(), 1);
  EXPECT_EQ(hsdp.atom(), 3);
  EXPECT_THAT(hsdp.peers({Axis::kParameters}), ElementsAre(2, 3));
  EXPECT_THAT(hsdp.peers({Axis::kReplicas}), ElementsAre(1, 3));
  const SliceMap partial({1, 2, 4}, 4, 2);
  EXPECT_EQ(partial.gradient_slice(), 0);
  EXPECT_EQ(partial.optimizer_slice(), 1);
  EXPECT_THAT(partial.peers({Axis::kOptimizer}), ElementsAre(0, 2));
}

TEST(SliceMap, RefusesDegreesThatDoNotDivide) {
  EXPECT_THAT(
      [] {
        SliceMap({2, 3, 6}, 6, 0);
      },
      ThrowsMessage<c10::Error>(HasSubstr("[zero] degrees: got 2,3,6 on a world of 6")));
  EXPECT_THAT(
      [] {
        SliceMap({2, 2, 4}, 6, 0);
      },
      ThrowsMessage<c10::Error>(HasSubstr("got 2,2,4 on a world of 6")));
  EXPECT_THROW(SliceMap({0, 1, 1}, 2, 0), c10::Error);
  EXPECT_THROW(SliceMap({1, 1, -1}, 2, 0), c10::Error);
  EXPECT_THROW(SliceMap({1, 1, 1}, 2, 2), c10::Error);
}

}  // namespace
}  // namespace tessera::internal
