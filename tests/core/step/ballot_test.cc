#include "tessera/core/step/ballot.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tessera/core/comm/loopback_group.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera {
namespace {

TEST(Ballot, EveryRankReadsEveryPaper) {
  for (const int size : {1, 2, 3, 4}) {
    testing::run_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
      Ballot ballot(*world, 3);
      for (int round = 0; round < 3; ++round) {
        for (int64_t word = 0; word < 3; ++word) {
          ballot.mine()[static_cast<size_t>(word)] = 1000 * world->rank() + 10 * round - word;
        }
        ballot.exchange("test");
        for (int rank = 0; rank < size; ++rank) {
          for (int64_t word = 0; word < 3; ++word) {
            EXPECT_EQ(ballot.of(rank)[static_cast<size_t>(word)], 1000 * rank + 10 * round - word);
          }
        }
      }
    });
  }
}

TEST(Ballot, KeepsTheLastExchangeUntilTheNext) {
  LoopbackGroup group;
  Ballot ballot(group, 2);
  ballot.mine()[1] = 7;
  ballot.exchange("test");
  ballot.mine()[1] = 8;
  EXPECT_EQ(ballot.of(0)[1], 7);
  ballot.exchange("test");
  EXPECT_EQ(ballot.of(0)[1], 8);
}

TEST(Ballot, BeginsWithZerosAndCountsItsBytes) {
  LoopbackGroup group;
  Ballot ballot(group, 5);
  for (const int64_t word : ballot.mine()) EXPECT_EQ(word, 0);
  EXPECT_EQ(ballot.mine().size(), 5u);
  EXPECT_EQ(ballot.bytes(), 2 * 5 * 8);
}

}  // namespace
}  // namespace tessera
