// The whole API of a process group over several hosts: shared memory inside each; between them
// shared memory without windows, or the fake MPI.
#include <string>

#include <gtest/gtest.h>

#include "tessera/tests/core/comm/groups/group_suite.h"
#include "tessera/tests/core/comm/hosts/mpi_hosts.h"
#include "tessera/tests/support/rank_hosts.h"

namespace tessera::internal {
namespace {

using testing::GroupBackend;
using testing::hosts_in_order;
using Lane = ProcessGroupOptions::Lane;

GroupBackend over_shm(const std::string& name, const std::vector<int>& host_of_rank, Lane lane) {
  GroupBackend backend{
      .name = name, .world_sizes = {static_cast<int>(host_of_rank.size())}, .run = nullptr};
  backend.largest = 5003;
  backend.rounds_once = host_of_rank.size() != 6;
  backend.run = [=](int, const testing::RankBody& body) {
    testing::run_host_ranks(host_of_rank, body, {.lane = lane});
  };
  return backend;
}

GroupBackend over_mpi(const std::string& name, const std::vector<int>& host_of_rank) {
  GroupBackend backend = over_shm(name, host_of_rank, Lane::kInline);
  backend.run = [=](int, const auto& body) { testing::run_mpi_hosts(host_of_rank, body); };
  return backend;
}

class CompleteHosts : public ::testing::TestWithParam<GroupBackend> {};

TEST_P(CompleteHosts, Reductions) { test_reductions(GetParam()); }
TEST_P(CompleteHosts, Moves) { test_moves(GetParam()); }
TEST_P(CompleteHosts, UnevenAllToAll) { test_uneven_all_to_all(GetParam()); }
TEST_P(CompleteHosts, CoalescedAndBytes) { test_coalesced_and_bytes(GetParam()); }
TEST_P(CompleteHosts, Subgroups) { test_subgroups(GetParam()); }
TEST_P(CompleteHosts, ThousandOperations) { test_thousand_operations(GetParam()); }
TEST_P(CompleteHosts, ChainedCalls) { test_chained_calls(GetParam()); }
TEST_P(CompleteHosts, ChainsBesideOtherCalls) { test_chains_beside_other_calls(GetParam()); }
TEST_P(CompleteHosts, DelayedCalls) { test_delayed_calls(GetParam()); }
TEST_P(CompleteHosts, Messages) { test_messages(GetParam()); }
TEST_P(CompleteHosts, MessagesBesideCollectives) { test_messages_beside_collectives(GetParam()); }
TEST_P(CompleteHosts, Refusals) { test_refusals(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Hosts, CompleteHosts,
    ::testing::Values(over_shm("two_of_two", hosts_in_order(2, 2), Lane::kInline),
                      over_shm("two_of_two_thread", hosts_in_order(2, 2), Lane::kThread),
                      over_shm("three_of_two", hosts_in_order(3, 2), Lane::kInline),
                      over_shm("two_of_three", hosts_in_order(2, 3), Lane::kInline),
                      over_shm("three_of_one", hosts_in_order(3, 1), Lane::kInline),
                      over_shm("uneven", {0, 0, 1}, Lane::kInline),
                      over_mpi("mpi_two_of_two", hosts_in_order(2, 2)),
                      over_mpi("mpi_three_of_two", hosts_in_order(3, 2))),
    [](const auto& info) { return info.param.name; });

TEST(CompleteHosts, ArrivalInAnyOrder) {
  test_arrival_in_any_order(over_shm("two_of_two", hosts_in_order(2, 2), Lane::kInline));
  test_arrival_in_any_order(over_mpi("mpi_two_of_two", hosts_in_order(2, 2)));
}

}  // namespace
}  // namespace tessera::internal
