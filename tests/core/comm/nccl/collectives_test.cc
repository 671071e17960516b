// Compares every collective, dtype and operation at worlds 1 to 3 with a plain sum in rank order,
// bit for bit (the fake sums so; NCCL itself promises no order), under random delays of every
// stream.
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/nccl/group.h"
#include "tessera/tests/core/comm/nccl/nccl_ranks.h"

namespace tessera::internal {
namespace {

using nccl::Group;
using nccl::wait_on_host;
using testing::fake;
using testing::HostDevice;
using testing::NcclRankOptions;
using testing::run_nccl_ranks;

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                      at::kLong,  at::kInt,    at::kByte};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax};
constexpr int64_t kSizes[] = {0, 1, 7, 1000};

at::Tensor input_of(int rank, int64_t numel, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(1000 + rank);
  if (at::isFloatingType(dtype)) {
    return (at::randn({numel}, generator, at::kDouble) * 3).to(dtype);
  }
  return at::randint(0, 200, {numel}, generator, at::kLong).to(dtype);
}

std::vector<at::Tensor> inputs_of(int size, int64_t numel, at::ScalarType dtype) {
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(input_of(rank, numel, dtype));
  return inputs;
}

at::Tensor reference(const std::vector<at::Tensor>& inputs, ReduceOp op) {
  const auto dtype = inputs[0].scalar_type();
  const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  const auto wide = narrow ? at::kFloat : dtype;
  at::Tensor result;
  for (const at::Tensor& input : inputs) {
    const at::Tensor own = input.to(wide);
    if (!result.defined()) {
      result = own;
    } else if (op == ReduceOp::kMin) {
      result = at::minimum(result, own);
    } else if (op == ReduceOp::kMax) {
      result = at::maximum(result, own);
    } else {
      result = result + own;
    }
  }
  if (op == ReduceOp::kAvg) result = result / static_cast<double>(inputs.size());
  return result.to(dtype);
}

class NcclCollectives : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    fake().reset();
    fake().set_questions_before_launch(2);
  }
  static NcclRankOptions late() {
    NcclRankOptions options;
    options.device.longest_delay = std::chrono::microseconds(200);
    return options;
  }
};

TEST_P(NcclCollectives, AllReduceAndReduceScatterOfEveryDtypeAndOp) {
  run_nccl_ranks(
      GetParam(),
      [](std::shared_ptr<Group> group, HostDevice&) {
        const int size = group->size();
        for (const auto dtype : kDtypes) {
          for (const ReduceOp op : kOps) {
            if (op == ReduceOp::kAvg && !at::isFloatingType(dtype)) continue;
            for (const int64_t numel : kSizes) {
              const std::string what =
                  absl::StrCat(c10::toString(dtype), " ", std::string(to_string(op)), " ", numel);
              const auto inputs = inputs_of(size, numel * size, dtype);
              const at::Tensor expected = reference(inputs, op);
              const at::Tensor own_part = expected.narrow(0, group->rank() * numel, numel);
              at::Tensor reduced = inputs[group->rank()].clone();
              at::Tensor slice = group->allocate(numel, dtype);
              at::Tensor whole = inputs[group->rank()].clone();
              at::Tensor in_place = whole.narrow(0, group->rank() * numel, numel);
              const auto first = group->all_reduce(reduced, op, "a");
              const auto second = group->reduce_scatter(slice, inputs[group->rank()], op, "s");
              const auto third = group->reduce_scatter(in_place, whole, op, "i");
              wait_on_host(*first);
              wait_on_host(*second);
              wait_on_host(*third);
              EXPECT_TRUE(at::equal(reduced, expected)) << what;
              EXPECT_TRUE(at::equal(slice, own_part)) << what;
              EXPECT_TRUE(at::equal(in_place, own_part)) << what;
            }
          }
        }
      },
      late());
}

TEST_P(NcclCollectives, AllGatherAndBroadcastOfEveryDtype) {
  run_nccl_ranks(
      GetParam(),
      [](std::shared_ptr<Group> group, HostDevice&) {
        const int size = group->size();
        for (const auto dtype : kDtypes) {
          for (const int64_t numel : kSizes) {
            const auto inputs = inputs_of(size, numel, dtype);
            at::Tensor all = group->allocate(numel * size, dtype);
            at::Tensor in_place = group->allocate(numel * size, dtype);
            at::Tensor own = in_place.narrow(0, group->rank() * numel, numel);
            own.copy_(inputs[group->rank()]);
            wait_on_host(*group->all_gather(all, inputs[group->rank()], "g"));
            wait_on_host(*group->all_gather(in_place, own, "p"));
            EXPECT_TRUE(at::equal(all, at::cat(inputs)));
            EXPECT_TRUE(at::equal(in_place, at::cat(inputs)));
            for (int root = 0; root < size; ++root) {
              at::Tensor sent = inputs[group->rank()].clone();
              wait_on_host(*group->broadcast(sent, root, "b"));
              EXPECT_TRUE(at::equal(sent, inputs[root]));
            }
          }
        }
        group->barrier("end");
      },
      late());
}

/// Integers, because a communicator whose ranks are the slices adds in another order.
TEST_P(NcclCollectives, SlicesMayBeAPermutation) {
  run_nccl_ranks(
      GetParam(),
      [](std::shared_ptr<Group> group, HostDevice&) {
        const int size = group->size();
        const int slice = (group->rank() + 1) % size;
        const auto inputs = inputs_of(size, 5 * size, at::kLong);
        const at::Tensor expected = reference(inputs, ReduceOp::kSum).narrow(0, slice * 5, 5);
        for (int round = 0; round < 3; ++round) {
          at::Tensor whole = inputs[group->rank()].clone();
          at::Tensor output =
              round == 1 ? whole.narrow(0, slice * 5, 5) : at::empty({5}, at::kLong);
          wait_on_host(*group->reduce_scatter(output, whole, ReduceOp::kSum, "s", slice));
          EXPECT_TRUE(at::equal(output, expected));
        }
        at::Tensor reduced = inputs[group->rank()].clone();
        wait_on_host(*group->all_reduce(reduced, ReduceOp::kSum));
        EXPECT_TRUE(at::equal(reduced, reference(inputs, ReduceOp::kSum)));
      },
      late());
}

TEST_P(NcclCollectives, SubgroupsHaveRanksAndSumsOfTheirOwn) {
  run_nccl_ranks(
      GetParam(),
      [](std::shared_ptr<Group> world, HostDevice&) {
        const int size = world->size();
        std::vector<int> last;
        for (int rank = size / 2; rank < size; ++rank) last.push_back(rank);
        const auto part = world->subgroup(last, "last");
        EXPECT_EQ(part != nullptr, world->rank() >= size / 2);
        if (part != nullptr) {
          EXPECT_EQ(part->name(), "world/last");
          EXPECT_EQ(part->rank(), world->rank() - size / 2);
          EXPECT_EQ(part->size(), size - size / 2);
          at::Tensor sum = at::full({3}, world->rank() + 1, at::kLong);
          wait_on_host(*part->all_reduce(sum, ReduceOp::kSum));
          int64_t expected = 0;
          for (const int rank : last) expected += rank + 1;
          EXPECT_EQ(sum[2].item<int64_t>(), expected);
          const auto again = duplicate(*part, "copy");
          EXPECT_EQ(again->name(), "world/last/copy");
          at::Tensor all = at::empty({again->size()}, at::kLong);
          wait_on_host(*again->all_gather(all, at::full({1}, world->rank(), at::kLong)));
          EXPECT_EQ(all[again->size() - 1].item<int64_t>(), last.back());
        }
        const auto columns = split(*world, std::vector<int>(size, 7), "all");
        EXPECT_EQ(columns->size(), size);
        world->barrier();
      },
      late());
}

INSTANTIATE_TEST_SUITE_P(Worlds, NcclCollectives, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace tessera::internal
