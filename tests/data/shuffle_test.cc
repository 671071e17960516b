#include "tessera/data/shuffle.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::internal::testing {
namespace {

using ::testing::ElementsAre;

// Values of a second implementation in another language. Checkpoints store positions in these
// orders, so they must never change.
TEST(Shuffle, IsTheSameForEver) {
  EXPECT_THAT(shuffled(10, 0, 0), ElementsAre(1, 7, 6, 2, 0, 9, 8, 4, 5, 3));
  EXPECT_THAT(shuffled(10, 0, 1), ElementsAre(1, 9, 6, 2, 3, 7, 4, 8, 0, 5));
  EXPECT_THAT(shuffled(10, 1, 0), ElementsAre(0, 8, 1, 4, 2, 3, 6, 9, 7, 5));
  EXPECT_THAT(shuffled(7, -3, 12), ElementsAre(6, 3, 5, 0, 4, 2, 1));
  EXPECT_THAT(shuffled(1, 5, 5), ElementsAre(0));
  uint64_t hash = 0;
  for (const int64_t sample : shuffled(100003, 42, 5)) {
    hash = hash * 1000003 + static_cast<uint64_t>(sample);
  }
  EXPECT_EQ(hash, 0xbf477419b06632d3);
}

TEST(Shuffle, HasEverySampleOnce) {
  for (const int64_t size : {1, 2, 3, 50, 1001}) {
    for (int64_t epoch = 0; epoch < 5; ++epoch) {
      std::vector<int> seen(static_cast<size_t>(size));
      for (const int64_t sample : shuffled(size, 7, epoch)) ++seen.at(static_cast<size_t>(sample));
      EXPECT_THAT(seen, ::testing::Each(1)) << size << " samples, epoch " << epoch;
    }
  }
}

// Seed and epoch are independent. (PyTorch adds them, so neighbouring seeds have equal orders.)
TEST(Shuffle, SeedAndEpochAreTwoThings) {
  EXPECT_NE(shuffled(50, 0, 1), shuffled(50, 1, 0));
  EXPECT_NE(shuffled(50, 0, 0), shuffled(50, 0, 1));
}

// Counts each sample in each place over many epochs: chi square of a table of 7 x 7 with (7 - 1)^2
// = 36 degrees of freedom; 99.9 % of fair shuffles are below 68.
TEST(Shuffle, IsFair) {
  constexpr size_t kSize = 7;
  constexpr int kEpochs = 20000;
  std::array<std::array<int, kSize>, kSize> table = {};
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const std::vector<int64_t> order = shuffled(kSize, 1, epoch);
    for (size_t place = 0; place < kSize; ++place)
      ++table[place][static_cast<size_t>(order[place])];
  }
  const double expected = static_cast<double>(kEpochs) / kSize;
  double chi_square = 0;
  for (const auto& row : table) {
    for (const int count : row) chi_square += std::pow(count - expected, 2) / expected;
  }
  EXPECT_LT(chi_square, 68);
  EXPECT_GT(chi_square, 12) << "too even to be random";
}

// Neighbours in one epoch are not neighbours in the next: about one fixed point and one succession
// per permutation.
TEST(Shuffle, EpochsAreUnrelated) {
  constexpr size_t kSize = 100;
  int fixed = 0;
  int successions = 0;
  std::vector<int64_t> before = shuffled(kSize, 3, 0);
  for (int epoch = 1; epoch <= 1000; ++epoch) {
    const std::vector<int64_t> order = shuffled(kSize, 3, epoch);
    for (size_t place = 0; place < kSize; ++place) {
      fixed += order[place] == before[place] ? 1 : 0;
      successions += place > 0 && order[place] == order[place - 1] + 1 ? 1 : 0;
    }
    before = order;
  }
  EXPECT_NEAR(fixed, 1000, 150);
  EXPECT_NEAR(successions, 990, 150);
}

}  // namespace
}  // namespace tessera::internal::testing
