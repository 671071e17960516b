// The whole API of a process group over the fake MPI, and its traffic.
#include <atomic>
#include <string>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tessera/tests/core/comm/groups/group_suite.h"
#include "tessera/tests/core/comm/mpi/mpi_ranks.h"
#include "tessera/tests/support/fake_mpi/fake_mpi.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/same_bits.h"

namespace tessera::internal {
namespace {

using testing::GroupBackend;
using testing::run_mpi_ranks;

GroupBackend over_fake_mpi() {
  return {.name = "mpi", .world_sizes = {1, 2, 3, 4}, .run = [](int size, const auto& body) {
            run_mpi_ranks(size, body);
          }};
}

TEST(CompleteMpiGroup, Reductions) { test_reductions(over_fake_mpi()); }
TEST(CompleteMpiGroup, Moves) { test_moves(over_fake_mpi()); }
TEST(CompleteMpiGroup, UnevenAllToAll) { test_uneven_all_to_all(over_fake_mpi()); }
TEST(CompleteMpiGroup, CoalescedAndBytes) { test_coalesced_and_bytes(over_fake_mpi()); }
TEST(CompleteMpiGroup, Subgroups) { test_subgroups(over_fake_mpi()); }
TEST(CompleteMpiGroup, ThousandOperations) { test_thousand_operations(over_fake_mpi()); }
TEST(CompleteMpiGroup, ChainedCalls) { test_chained_calls(over_fake_mpi()); }
TEST(CompleteMpiGroup, ChainsBesideOtherCalls) { test_chains_beside_other_calls(over_fake_mpi()); }
TEST(CompleteMpiGroup, ArrivalInAnyOrder) { test_arrival_in_any_order(over_fake_mpi()); }
TEST(CompleteMpiGroup, DelayedCalls) { test_delayed_calls(over_fake_mpi()); }
TEST(CompleteMpiGroup, Messages) { test_messages(over_fake_mpi()); }
TEST(CompleteMpiGroup, MessagesBesideCollectives) {
  test_messages_beside_collectives(over_fake_mpi());
}
TEST(CompleteMpiGroup, Refusals) { test_refusals(over_fake_mpi()); }

// More than one step, so that pieces of both halves of the memory are under way, and an odd rest.
constexpr int64_t kSteps = (int64_t{4} << 20) / 4 * 2 + 12345;

at::Tensor numbers_of(int rank, int64_t numel, at::ScalarType dtype) {
  const at::Tensor steps = at::arange(numel, at::kFloat);
  return at::sin(steps * (0.1f + 0.013f * static_cast<float>(rank))).to(dtype);
}

at::Tensor sum_of(ProcessGroup& group, int64_t numel, at::ScalarType dtype) {
  at::Tensor tensor = numbers_of(group.rank(), numel, dtype);
  group.all_reduce(tensor, ReduceOp::kAvg, "bits", 0.0)->wait();
  const at::Tensor input = numbers_of(group.rank(), numel / group.size() * group.size(), dtype);
  at::Tensor slice = at::empty({numel / group.size()}, dtype);
  const int which = (group.rank() + 1) % group.size();
  group.reduce_scatter(slice, input, ReduceOp::kSum, "slice", which)->wait();
  at::Tensor rooted = numbers_of(group.rank(), numel, dtype);
  group.reduce(rooted, ReduceOp::kSum, group.size() - 1, "rooted")->wait();
  return at::cat({tensor, slice, rooted});
}

TEST(MpiSums, HaveTheBitsOfSharedMemory) {
  for (const int size : {2, 3, 4}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const int64_t numel :
           {int64_t{5}, int64_t{1001}, dtype == at::kFloat ? kSteps : 70001}) {
        std::vector<at::Tensor> of_shm(static_cast<size_t>(size)), of_mpi(of_shm);
        testing::run_ranks(size, [&](std::shared_ptr<ProcessGroup> group) {
          of_shm[static_cast<size_t>(group->rank())] = sum_of(*group, numel, dtype);
        });
        run_mpi_ranks(size, [&](std::shared_ptr<ProcessGroup> group) {
          of_mpi[static_cast<size_t>(group->rank())] = sum_of(*group, numel, dtype);
        });
        for (size_t rank = 0; rank < of_shm.size(); ++rank) {
          EXPECT_TRUE(testing::have_same_bits(of_shm[rank], of_mpi[rank]))
              << size << " ranks, " << numel << ", rank " << rank;
        }
      }
    }
  }
}

/// Returns the bytes that all ranks send.
int64_t sent_by(int size, const testing::MpiBody& body) {
  const int64_t before = testing::fake_data_bytes();
  run_mpi_ranks(size, body);
  return testing::fake_data_bytes() - before;
}

TEST(MpiTraffic, IsWhatTheFormulaSaysToTheByte) {
  for (const int size : {2, 3, 4}) {
    const int64_t bytes = int64_t{4} * 12 * 3000;  // divisible by every size
    const int64_t others = size - 1;
    const at::Tensor made = at::ones({bytes / 4});
    EXPECT_EQ(sent_by(size,
                      [&](auto group) {
                        at::Tensor tensor = made.clone();
                        group->all_reduce(tensor, ReduceOp::kSum)->wait();
                      }),
              2 * bytes * others);
    EXPECT_EQ(sent_by(size,
                      [&](auto group) {
                        at::Tensor slice = at::empty({made.numel() / group->size()});
                        group->reduce_scatter(slice, made, ReduceOp::kSum)->wait();
                      }),
              bytes * others);
    EXPECT_EQ(sent_by(size,
                      [&](auto group) {
                        at::Tensor whole = at::empty({made.numel() * group->size()});
                        group->all_gather(whole, made)->wait();
                      }),
              bytes * others * size);
    // Every other rank gets every part once.
    EXPECT_EQ(sent_by(size,
                      [&](auto group) {
                        at::Tensor tensor = made.clone();
                        group->broadcast(tensor, 0)->wait();
                      }),
              bytes * others);
    EXPECT_EQ(sent_by(size,
                      [&](auto group) {
                        at::Tensor vote = at::ones({64});  // is sent inside the envelopes
                        group->all_reduce(vote, ReduceOp::kSum)->wait();
                      }),
              0);
  }
}

}  // namespace
}  // namespace tessera::internal
