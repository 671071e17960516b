#include "tessera/zero/buffers/replica_sync.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include <torch/torch.h>

#include "tessera/core/comm/groups/loopback_group.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

TEST(ReplicaSync, GivesEveryRankTheValuesOfTheNamedOne) {
  for (const int from_rank : {0, 2}) {
    testing::run_ranks(3, [&](std::shared_ptr<ProcessGroup> world) {
      const int64_t mine = world->rank() + 1;
      const int64_t theirs = from_rank + 1;
      const at::Tensor base = at::full({7, 16}, mine, at::kFloat);
      std::vector<at::Tensor> tensors = {at::full({3, 5}, mine, at::kDouble),
                                         at::full({}, mine, at::kLong),
                                         at::arange(24, at::kFloat)
                                             .reshape({2, 3, 2, 2})
                                             .contiguous(at::MemoryFormat::ChannelsLast)
                                             .mul_(mine),
                                         base.narrow(1, 0, 13),  // with gaps
                                         at::full({4}, mine == theirs, at::kBool),
                                         at::zeros({0}),
                                         at::full({3}, mine, at::kFloat).set_requires_grad(true),
                                         at::full({1, 2}, mine, at::kFloat).expand({4, 2})};
      const at::NoGradGuard no_grad;
      sync_replicas(*world, tensors, from_rank, "test");
      EXPECT_TRUE(at::equal(tensors[0], at::full({3, 5}, theirs, at::kDouble)));
      EXPECT_EQ(tensors[1].item<int64_t>(), theirs);
      EXPECT_TRUE(at::equal(tensors[2], at::arange(24, at::kFloat).reshape({2, 3, 2, 2}) * theirs));
      EXPECT_TRUE(tensors[2].is_contiguous(at::MemoryFormat::ChannelsLast));
      EXPECT_TRUE(at::equal(tensors[3], at::full({7, 13}, theirs, at::kFloat)));
      EXPECT_TRUE(at::equal(base.narrow(1, 13, 3), at::full({7, 3}, mine, at::kFloat)));
      EXPECT_TRUE(tensors[4].all().item<bool>());
      EXPECT_TRUE(at::equal(tensors[6], at::full({3}, theirs, at::kFloat)));
      EXPECT_TRUE(tensors[6].requires_grad());
      EXPECT_TRUE(at::equal(tensors[7], at::full({4, 2}, theirs, at::kFloat)));
      EXPECT_EQ(tensors[7].stride(0), 0) << "it still is two elements";
    });
  }
}

TEST(ReplicaSync, TouchesNothingInAWorldOfOne) {
  LoopbackGroup group;
  const at::Tensor complex_numbers = at::ones({2}, at::kComplexFloat);
  const auto version = complex_numbers._version();
  sync_replicas(group, {complex_numbers}, 0, "test");
  EXPECT_EQ(complex_numbers._version(), version);
}

}  // namespace
}  // namespace tessera::internal
