// Bytes that ranks of several hosts send each other by the fake MPI: Note [Traffic between hosts].
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tessera/tests/core/comm/hosts/mpi_hosts.h"
#include "tessera/tests/support/fake_mpi/fake_mpi.h"
#include "tessera/tests/support/rank_hosts.h"

namespace tessera::internal {
namespace {

using testing::hosts_in_order;

/// Returns the bytes that all hosts send.
int64_t sent_by_hosts(const std::vector<int>& host_of_rank, const testing::MpiBody& body) {
  const int64_t before = testing::fake_data_bytes();
  testing::run_mpi_hosts(host_of_rank, body);
  return testing::fake_data_bytes() - before;
}

TEST(HostTraffic, IsWhatTheFormulaSaysToTheByte) {
  for (const auto& [hosts, locals] : {std::pair{2, 2}, std::pair{3, 2}, std::pair{2, 3}}) {
    const int64_t ranks = hosts * locals;
    const int64_t numel = 12 * 3000;  // divisible by every number here
    const int64_t bytes = numel * 4;
    const int64_t others = hosts - 1;
    const at::Tensor made = at::ones({numel});
    const std::vector<int> host_of_rank = hosts_in_order(hosts, locals);
    // A host sends 2 n (H-1)/H, whatever its number of ranks.
    EXPECT_EQ(sent_by_hosts(host_of_rank,
                            [&](auto group) {
                              at::Tensor tensor = made.clone();
                              group->all_reduce(tensor, ReduceOp::kSum)->wait();
                            }),
              2 * bytes * others);
    EXPECT_EQ(sent_by_hosts(host_of_rank,
                            [&](auto group) {
                              at::Tensor slice = at::empty({numel / ranks});
                              group->reduce_scatter(slice, made, ReduceOp::kSum)->wait();
                            }),
              bytes * others);
    // Every part is sent to every other host once.
    EXPECT_EQ(sent_by_hosts(host_of_rank,
                            [&](auto group) {
                              at::Tensor whole = at::empty({numel * ranks});
                              group->all_gather(whole, made)->wait();
                            }),
              bytes * ranks * others);
    EXPECT_EQ(sent_by_hosts(host_of_rank,
                            [&](auto group) {
                              at::Tensor tensor = made.clone();
                              group->broadcast(tensor, 1)->wait();
                            }),
              bytes * others);
    EXPECT_EQ(sent_by_hosts(host_of_rank,
                            [&](auto group) {
                              at::Tensor tensor = made.clone();
                              group->reduce(tensor, ReduceOp::kSum, 1)->wait();
                            }),
              bytes * others + bytes * others / hosts);  // the results, to one host
    EXPECT_EQ(sent_by_hosts(host_of_rank,
                            [&](auto group) {
                              at::Tensor vote = at::ones({64});  // is sent inside MPI's envelopes
                              group->all_reduce(vote, ReduceOp::kSum)->wait();
                              group->barrier("b");
                            }),
              0);
  }
}

}  // namespace
}  // namespace tessera::internal
