// reduce_scatter in which ranks receive slices other than their own: the bits are all_reduce's,
// whichever rank receives them.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/process_group.h"
#include "tessera/tests/core/comm/groups/rank_tensors.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::have_same_bits;
using testing::make;
using testing::Memory;
using testing::run_ranks;
using testing::run_ranks_expecting_errors;
using Lane = ProcessGroupOptions::Lane;

at::Tensor floats_of(int rank, int64_t numel, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(500 + rank);
  return (at::randn({numel}, generator, at::kDouble) * 3).to(dtype);
}

/// Every rank's input has size() * numel elements.
void check(ProcessGroup& group, Memory memory, const at::Tensor& own_input, const at::Tensor& sum,
           ReduceOp op, int slice) {
  const int64_t numel = own_input.numel() / group.size();
  const at::Tensor wanted = sum.narrow(0, slice * numel, numel);
  const at::Tensor input = make(group, memory, own_input.numel(), own_input.scalar_type());
  input.copy_(own_input);
  const at::Tensor output = make(group, Memory::kPrivate, numel, input.scalar_type());
  group.reduce_scatter(output, input, op, "apart", slice)->wait();
  ASSERT_TRUE(have_same_bits(output, wanted)) << "slice " << slice << " of " << numel;
  ASSERT_TRUE(have_same_bits(input, own_input)) << "the input changed";

  at::Tensor expected = own_input.clone();
  expected.narrow(0, slice * numel, numel).copy_(wanted);
  group.reduce_scatter(input.narrow(0, slice * numel, numel), input, op, "in place", slice)->wait();
  ASSERT_TRUE(have_same_bits(input, expected)) << "in place, slice " << slice << " of " << numel;
}

void check_all_permutations(int size, int64_t numel, at::ScalarType dtype, Lane lane) {
  run_ranks(size,
            [=](std::shared_ptr<ProcessGroup> group) {
              const at::Tensor input = floats_of(group->rank(), numel * size, dtype);
              for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
                const at::Tensor sum = input.clone();
                group->all_reduce(sum, op)->wait();
                std::vector<int> slice_of(size);
                std::iota(slice_of.begin(), slice_of.end(), 0);
                do {
                  for (const Memory memory : {Memory::kArena, Memory::kPrivate, Memory::kMixed}) {
                    check(*group, memory, input, sum, op, slice_of[group->rank()]);
                  }
                } while (std::next_permutation(slice_of.begin(), slice_of.end()));
              }
            },
            {.lane = lane});
}

TEST(PermutedScatter, EqualsSlicesOfAllReduceForEveryPermutation) {
  for (const int size : {1, 2, 3, 4}) {
    for (const int64_t numel : {0, 1, 7, 1000}) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        check_all_permutations(size, numel, dtype, Lane::kInline);
      }
    }
  }
  // One slice exceeds a staging area; an odd and an even number of ranks.
  check_all_permutations(3, 50021, at::kFloat, Lane::kThread);
  check_all_permutations(4, 20011, at::kDouble, Lane::kInline);
}

// The comparison above must notice a wrong slice and a wrong order of summation.
TEST(PermutedScatter, NegativeControl) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> group) {
    const at::Tensor input = floats_of(group->rank(), 300, at::kFloat);
    const at::Tensor sum = input.clone();
    group->all_reduce(sum, ReduceOp::kSum)->wait();
    const at::Tensor output = at::empty({100});
    const int slice = (group->rank() + 1) % 3;
    group->reduce_scatter(output, input, ReduceOp::kSum, "rotated", slice)->wait();
    for (int other = 0; other < 3; ++other) {
      EXPECT_EQ(have_same_bits(output, sum.narrow(0, 100 * other, 100)), other == slice);
    }
    at::Tensor backwards = floats_of(2, 300, at::kFloat);
    backwards = backwards + floats_of(1, 300, at::kFloat) + floats_of(0, 300, at::kFloat);
    EXPECT_FALSE(have_same_bits(output, backwards.narrow(0, 100 * slice, 100)));
  });
}

TEST(PermutedScatter, TwoRanksWithOneSliceAreNamedOnEveryRank) {
  for (const Lane lane : {Lane::kInline, Lane::kThread}) {
    const auto errors = run_ranks_expecting_errors(
        3,
        [](std::shared_ptr<ProcessGroup> group) {
          const int slice = group->rank() == 2 ? 0 : ProcessGroup::kOwnRank;
          const at::Tensor input = at::ones({12});
          const at::Tensor output = at::zeros({4});
          try {
            group->reduce_scatter(output, input, ReduceOp::kSum, "bucket 3", slice)->wait();
          } catch (...) {
            EXPECT_EQ(output.sum().item<float>(), 0);
            throw;
          }
        },
        {.lane = lane});
    EXPECT_THAT(errors,
                Each(HasSubstr("rank 2 and rank 0 both asked for slice 0 of reduce_scatter SUM "
                               "float32[12] 'bucket 3'; the ranks' slices must be a permutation")));
  }
}

TEST(PermutedScatter, MisuseThrowsBeforeAnythingIsSent) {
  const auto text_of = [](ProcessGroup& group, const at::Tensor& output, const at::Tensor& input,
                          int slice) -> std::string {
    try {
      group.reduce_scatter(output, input, ReduceOp::kSum, "x", slice);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  for (const int size : {1, 2}) {
    run_ranks(size, [&](std::shared_ptr<ProcessGroup> group) {
      const at::Tensor input = at::zeros({4 * size});
      for (const int slice : {-2, size}) {
        EXPECT_THAT(text_of(*group, at::zeros({4}), input, slice),
                    AllOf(HasSubstr("[comm] reduce_scatter: got slice " + std::to_string(slice)),
                          HasSubstr("expected 0 to " + std::to_string(size - 1))));
      }
      group->barrier("as good as before");
    });
  }
  run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
    const at::Tensor input = at::zeros({8});
    const int other = 1 - group->rank();
    // In place means in the place of the received slice.
    EXPECT_THAT(text_of(*group, input.narrow(0, 4 * group->rank(), 4), input, other),
                HasSubstr("of the whole, expected slice " + std::to_string(other)));
    group->barrier("as good as before");
  });
}

}  // namespace
}  // namespace tessera::internal
