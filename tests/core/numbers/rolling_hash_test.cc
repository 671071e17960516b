#include "tessera/core/numbers/rolling_hash.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

namespace tessera::internal {
namespace {

using Event = RollingHash::Event;
using History = std::vector<std::pair<Event, int64_t>>;

int64_t hash(const History& history) {
  RollingHash hash;
  for (const auto& [event, subject] : history) hash.record(event, subject);
  return hash.value();
}

TEST(RollingHash, SameHistoriesHaveTheSameValue) {
  const History history = {{Event::kReduce, 0}, {Event::kReduce, 1}, {Event::kStep, 1}};
  EXPECT_EQ(hash(history), hash(history));
}

TEST(RollingHash, EveryDifferenceShows) {
  const std::vector<History> histories = {
      {},
      {{Event::kReduce, 0}},
      {{Event::kReduce, 1}},
      {{Event::kReduce, 0}, {Event::kReduce, 1}},
      {{Event::kReduce, 1}, {Event::kReduce, 0}},
      {{Event::kReduce, 0}, {Event::kReduce, 0}},
      {{Event::kMicroStep, 0}},
      {{Event::kNoSyncMicroStep, 0}},
      {{Event::kDrop, 0}},
      {{Event::kStep, 0}},
      {{Event::kReduce, int64_t{1} << 40}},
  };
  std::set<int64_t> values;
  for (const History& history : histories) values.insert(hash(history));
  EXPECT_EQ(values.size(), histories.size());
}

}  // namespace
}  // namespace tessera::internal
