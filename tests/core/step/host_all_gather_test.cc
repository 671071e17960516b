#include "tessera/core/step/host_all_gather.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tessera/core/comm/groups/loopback_group.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

TEST(HostAllGather, EveryRankReadsEveryReport) {
  for (const int size : {1, 2, 3, 4}) {
    testing::run_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
      HostAllGather all_gather(*world, 3);
      for (int round = 0; round < 3; ++round) {
        for (int64_t word = 0; word < 3; ++word) {
          all_gather.mine()[static_cast<size_t>(word)] = 1000 * world->rank() + 10 * round - word;
        }
        all_gather.exchange("test");
        for (int rank = 0; rank < size; ++rank) {
          for (int64_t word = 0; word < 3; ++word) {
            EXPECT_EQ(all_gather.of(rank)[static_cast<size_t>(word)],
                      1000 * rank + 10 * round - word);
          }
        }
      }
    });
  }
}

TEST(HostAllGather, KeepsTheLastExchangeUntilTheNext) {
  LoopbackGroup group;
  HostAllGather all_gather(group, 2);
  all_gather.mine()[1] = 7;
  all_gather.exchange("test");
  all_gather.mine()[1] = 8;
  EXPECT_EQ(all_gather.of(0)[1], 7);
  all_gather.exchange("test");
  EXPECT_EQ(all_gather.of(0)[1], 8);
}

TEST(HostAllGather, BeginsWithZerosAndCountsItsBytes) {
  LoopbackGroup group;
  HostAllGather all_gather(group, 5);
  for (const int64_t word : all_gather.mine()) EXPECT_EQ(word, 0);
  EXPECT_EQ(all_gather.mine().size(), 5u);
  EXPECT_EQ(all_gather.bytes(), 2 * 5 * 8);
}

}  // namespace
}  // namespace tessera::internal
