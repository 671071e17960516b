#include "tessera/core/numbers/rolling_hash.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

namespace tessera::internal {
namespace {

using Happening = RollingHash::Event;
using History = std::vector<std::pair<Happening, int64_t>>;

int64_t hash(const History& history) {
  RollingHash hash;
  for (const auto& [event, subject] : history) hash.record(event, subject);
  return hash.value();
}

TEST(RollingHash, SameHistoriesHaveTheSameValue) {
  const History history = {{Happening::kReduce, 0}, {Happening::kReduce, 1}, {Happening::kStep, 1}};
  EXPECT_EQ(hash(history), hash(history));
}

TEST(RollingHash, EveryDifferenceShows) {
  const std::vector<History> histories = {
      {},
      {{Happening::kReduce, 0}},
      {{Happening::kReduce, 1}},
      {{Happening::kReduce, 0}, {Happening::kReduce, 1}},
      {{Happening::kReduce, 1}, {Happening::kReduce, 0}},
      {{Happening::kReduce, 0}, {Happening::kReduce, 0}},
      {{Happening::kMicroStep, 0}},
      {{Happening::kNoSyncMicroStep, 0}},
      {{Happening::kDrop, 0}},
      {{Happening::kStep, 0}},
      {{Happening::kReduce, int64_t{1} << 40}},
  };
  std::set<int64_t> values;
  for (const History& history : histories) values.insert(hash(history));
  EXPECT_EQ(values.size(), histories.size());
}

}  // namespace
}  // namespace tessera::internal
