#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/process_group.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"

// Sums over ranks in the order of a binary tree.

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::message_of;
using testing::run_ranks;
using testing::run_ranks_expecting_errors;

constexpr int64_t kTermNumel = 16 * 177;

at::Tensor leaf_of(int rank, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(rank + 70));
  return at::randn({kTermNumel}, generator, dtype);
}

at::Tensor tree_of(int first, int count, at::ScalarType dtype) {
  if (count == 1) return leaf_of(first, dtype);
  return tree_of(first, count / 2, dtype) + tree_of(first + count / 2, count / 2, dtype);
}

TEST(SumOrder, OfATreeIsThatOfAllItsCollectives) {
  for (const int ranks : {1, 2, 4, 8, 16}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      run_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& world) {
        const at::Tensor sum = tree_of(0, ranks, dtype);
        const at::Tensor private_memory = leaf_of(world->rank(), dtype);
        const at::Tensor shared = world->allocate(kTermNumel, dtype);
        for (const at::Tensor& whole : {private_memory, shared}) {
          whole.copy_(leaf_of(world->rank(), dtype));
          const int64_t numel = kTermNumel / ranks;
          const at::Tensor part = at::empty({numel}, dtype);
          world
              ->reduce_scatter(part, whole, ReduceOp::kAvg, "part", ProcessGroup::kOwnRank, 0.0,
                               SumOrder::kBinaryTree)
              ->wait();
          EXPECT_TRUE(at::equal(part, sum.narrow(0, world->rank() * numel, numel) / ranks));
          world->all_reduce(whole, ReduceOp::kSum, "whole", 0.0, SumOrder::kBinaryTree)->wait();
          EXPECT_TRUE(at::equal(whole, sum)) << ranks << " " << dtype;
          whole.copy_(leaf_of(world->rank(), dtype));
          world->all_reduce(whole, ReduceOp::kSum, "ranks")->wait();
          EXPECT_EQ(at::equal(whole, sum), ranks <= 2) << "the control";
        }
      });
    }
  }
}

TEST(SumOrder, OfATreeIsRefusedWhereItIsNoTreeOrRounds) {
  const auto message = [](ProcessGroup& world, ReduceOp op, at::ScalarType dtype) {
    return message_of([&] {
      world.all_reduce(at::ones({4}, dtype), op, "sum", 0.0, SumOrder::kBinaryTree)->wait();
    });
  };
  run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& world) {
    EXPECT_THAT(message(*world, ReduceOp::kSum, at::kFloat),
                HasSubstr("got a tree's order of SUM of Float on cpu over 3 ranks, expected SUM or "
                          "AVG of float32 or float64 on cpu over a power of two"));
  });
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& world) {
    EXPECT_THAT(message(*world, ReduceOp::kSum, at::kBFloat16),
                HasSubstr("got a tree's order of SUM of BFloat16 on cpu over 2 ranks, expected"));
    EXPECT_THAT(message(*world, ReduceOp::kMax, at::kFloat),
                HasSubstr("got a tree's order of MAX of Float on cpu over 2 ranks, expected"));
    EXPECT_EQ(message(*world, ReduceOp::kAvg, at::kFloat), testing::kNothingThrown);
  });
}

TEST(SumOrder, IsComparedBetweenRanks) {
  const auto errors = run_ranks_expecting_errors(2, [](const std::shared_ptr<ProcessGroup>& world) {
    const SumOrder order = world->rank() == 0 ? SumOrder::kRanks : SumOrder::kBinaryTree;
    world->all_reduce(at::ones({4}), ReduceOp::kSum, "sum", 0.0, order)->wait();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("all_reduce SUM float32[4] 'sum'"),
                                 HasSubstr("all_reduce SUM in a tree's order float32[4] 'sum'"))));
}

}  // namespace
}  // namespace tessera::internal
