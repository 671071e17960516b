// The order in which ranks of several hosts are summed, bit for bit, in all collectives.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_hosts.h"
#include "tessera/tests/support/same_bits.h"

namespace tessera::internal {
namespace {

using hosts::HostLayout;
using ::testing::HasSubstr;
using testing::have_same_bits;
using testing::hosts_in_order;
using testing::message_of;
using testing::run_host_ranks;

at::Tensor host_numbers_of(int rank, int64_t numel, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(900 + rank);
  return (at::randn({numel}, generator, at::kDouble) * 3).to(dtype);
}

bool is_half(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }

/// Implements Note [Sums of two levels] plainly.
at::Tensor summed(const HostLayout& layout, int64_t numel, at::ScalarType dtype, ReduceOp op) {
  const at::ScalarType wide = is_half(dtype) ? at::kFloat : dtype;
  at::Tensor over_hosts;
  for (int host = 0; host < layout.hosts; ++host) {
    at::Tensor inside;
    for (const int rank : layout.ranks_of(host)) {
      const at::Tensor own = host_numbers_of(rank, numel, dtype).to(wide);
      inside = inside.defined() ? inside + own : own;
    }
    if (is_half(dtype)) {
      if (op == ReduceOp::kAvg) inside = inside / layout.ranks();
      inside = inside.to(dtype).to(wide);
    }
    over_hosts = over_hosts.defined() ? over_hosts + inside : inside;
  }
  if (op == ReduceOp::kAvg && !is_half(dtype)) over_hosts = over_hosts / layout.ranks();
  return over_hosts.to(dtype);
}

const std::vector<std::vector<int>>& layouts() {
  static const auto* const all = new std::vector<std::vector<int>>{
      hosts_in_order(2, 2), hosts_in_order(3, 2), hosts_in_order(2, 3)};
  return *all;
}

TEST(SumsOfHosts, AreThoseOfEachHostAndThenOfHosts) {
  for (const std::vector<int>& host_of_rank : layouts()) {
    const HostLayout layout = *HostLayout::of(host_of_rank);
    run_host_ranks(host_of_rank, [&](std::shared_ptr<ProcessGroup> group) {
      for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
          for (const int64_t numel : {1, 7, 1001}) {
            const std::string what = absl::StrCat(dtype_name(dtype), " ", numel);
            const at::Tensor expected = summed(layout, numel, dtype, op);
            at::Tensor all = host_numbers_of(group->rank(), numel, dtype);
            group->all_reduce(all, op)->wait();
            EXPECT_TRUE(have_same_bits(all, expected)) << what;
            at::Tensor one = host_numbers_of(group->rank(), numel, dtype);
            group->reduce(one, op, 1)->wait();
            EXPECT_TRUE(have_same_bits(
                one, group->rank() == 1 ? expected : host_numbers_of(group->rank(), numel, dtype)))
                << what;
          }
        }
      }
    });
  }
}

// Negative control: a sum in rank order has other bits.
TEST(SumsOfHosts, AreNotThoseInTheOrderOfTheRanks) {
  const HostLayout two{2, 2}, one{1, 4}, four{4, 1};
  const auto sum = [](const HostLayout& layout) {
    return summed(layout, 1001, at::kFloat, ReduceOp::kSum);
  };
  EXPECT_FALSE(have_same_bits(sum(two), sum(one)));
  EXPECT_TRUE(have_same_bits(sum(four), sum(one)));
}

TEST(SumsOfHosts, ScatteredInAnyPermutationHaveTheBitsOfTheWhole) {
  for (const std::vector<int>& host_of_rank : layouts()) {
    const HostLayout layout = *HostLayout::of(host_of_rank);
    const int size = layout.ranks();
    run_host_ranks(host_of_rank, [&](std::shared_ptr<ProcessGroup> group) {
      std::vector<int> slice_of(static_cast<size_t>(size));
      std::iota(slice_of.begin(), slice_of.end(), 0);
      int permutations = 0;
      do {
        if (size > 4 && permutations++ % 29 != 0) continue;
        for (const auto dtype : {at::kFloat, at::kBFloat16}) {
          const int64_t numel = 37;
          const int slice = slice_of[static_cast<size_t>(group->rank())];
          const at::Tensor expected =
              summed(layout, numel * size, dtype, ReduceOp::kAvg).narrow(0, slice * numel, numel);
          const at::Tensor own = host_numbers_of(group->rank(), numel * size, dtype);
          const at::Tensor input = group->allocate(own.numel(), dtype).copy_(own);
          const at::Tensor output = at::empty({numel}, dtype);
          group->reduce_scatter(output, input, ReduceOp::kAvg, "apart", slice)->wait();
          ASSERT_TRUE(have_same_bits(output, expected));
          ASSERT_TRUE(have_same_bits(input, own)) << "the input changed";
          const at::Tensor place = input.narrow(0, slice * numel, numel);
          group->reduce_scatter(place, input, ReduceOp::kAvg, "in place", slice)->wait();
          ASSERT_TRUE(have_same_bits(place, expected));
          place.copy_(own.narrow(0, slice * numel, numel));
          ASSERT_TRUE(have_same_bits(input, own)) << "the rest changed";
        }
      } while (std::next_permutation(slice_of.begin(), slice_of.end()));
    });
  }
}

TEST(SumsOfHosts, AsTreesAreTheTreeOfOneHost) {
  constexpr int64_t kNumel = 1001;
  const std::vector<int> host_of_rank = hosts_in_order(2, 2);
  std::vector<at::Tensor> of_one(4), of_two(4);
  const auto tree = [](ProcessGroup& group) {
    at::Tensor tensor = host_numbers_of(group.rank(), kNumel, at::kFloat);
    group.all_reduce(tensor, ReduceOp::kAvg, "tree", 3.0, SumOrder::kBinaryTree)->wait();
    return tensor;
  };
  testing::run_ranks(4, [&](std::shared_ptr<ProcessGroup> group) {
    of_one[static_cast<size_t>(group->rank())] = tree(*group);
  });
  run_host_ranks(host_of_rank, [&](std::shared_ptr<ProcessGroup> group) {
    EXPECT_TRUE(group->can().tree_sums);
    of_two[static_cast<size_t>(group->rank())] = tree(*group);
  });
  for (size_t rank = 0; rank < 4; ++rank) EXPECT_TRUE(have_same_bits(of_one[rank], of_two[rank]));
  run_host_ranks(hosts_in_order(3, 2), [&](std::shared_ptr<ProcessGroup> group) {
    EXPECT_FALSE(group->can().tree_sums);
    EXPECT_THAT(message_of([&] { tree(*group); }),
                HasSubstr("all_reduce: got a tree's order of AVG of Float on cpu over 6 ranks"));
    group->barrier("still usable");
  });
}

// 4 * 40000 overflows fp16; the mean does not, nor does any intermediate value.
TEST(SumsOfHosts, MeansOfHalvesDoNotOverflowOnTheWay) {
  run_host_ranks(hosts_in_order(2, 2), [](std::shared_ptr<ProcessGroup> group) {
    at::Tensor tensor = at::full({100}, 40000.0, at::kHalf);
    group->all_reduce(tensor, ReduceOp::kAvg)->wait();
    EXPECT_TRUE(at::equal(tensor, at::full({100}, 40000.0, at::kHalf)));
  });
}

}  // namespace
}  // namespace tessera::internal
