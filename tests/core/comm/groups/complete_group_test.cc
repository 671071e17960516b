// The whole API of a process group over loopback, shared memory and the simplest link, with
// collectives in the call and in their own thread.
#include <string>

#include <gtest/gtest.h>

#include "tessera/tests/core/comm/groups/group_suite.h"
#include "tessera/tests/support/rank_memory_link.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using testing::GroupBackend;

GroupBackend over_shm(const std::string& name, ProcessGroupOptions::Lane lane) {
  GroupBackend backend{.name = name, .world_sizes = {2, 3, 4}, .run = nullptr};
  backend.run = [lane](int size, const testing::RankBody& body) {
    testing::RankThreadOptions options;
    options.lane = lane;
    testing::run_ranks(size, body, options);
  };
  return backend;
}

GroupBackend over_loopback() {
  return {.name = "loopback", .world_sizes = {1}, .run = [](int size, const auto& body) {
            testing::run_ranks(size, body);
          }};
}

GroupBackend over_memory(const std::string& name, Lane::Mode mode) {
  GroupBackend backend{.name = name, .world_sizes = {2, 3, 4}, .run = nullptr};
  backend.run = [mode](int size, const testing::RankBody& body) {
    testing::RankThreadOptions options;
    options.make_world = testing::memory_world(size, mode);
    testing::run_ranks(size, body, options);
  };
  return backend;
}

class CompleteGroup : public ::testing::TestWithParam<GroupBackend> {};

TEST_P(CompleteGroup, Reductions) { test_reductions(GetParam()); }
TEST_P(CompleteGroup, Moves) { test_moves(GetParam()); }
TEST_P(CompleteGroup, UnevenAllToAll) { test_uneven_all_to_all(GetParam()); }
TEST_P(CompleteGroup, CoalescedAndBytes) { test_coalesced_and_bytes(GetParam()); }
TEST_P(CompleteGroup, Subgroups) { test_subgroups(GetParam()); }
TEST_P(CompleteGroup, ThousandOperations) { test_thousand_operations(GetParam()); }
TEST_P(CompleteGroup, ChainedCalls) { test_chained_calls(GetParam()); }
TEST_P(CompleteGroup, ChainsBesideOtherCalls) { test_chains_beside_other_calls(GetParam()); }
TEST_P(CompleteGroup, ArrivalInAnyOrder) { test_arrival_in_any_order(GetParam()); }
TEST_P(CompleteGroup, DelayedCalls) { test_delayed_calls(GetParam()); }
TEST_P(CompleteGroup, Messages) { test_messages(GetParam()); }
TEST_P(CompleteGroup, MessagesBesideCollectives) { test_messages_beside_collectives(GetParam()); }
TEST_P(CompleteGroup, Refusals) { test_refusals(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Backends, CompleteGroup,
    ::testing::Values(over_loopback(), over_shm("shm", ProcessGroupOptions::Lane::kInline),
                      over_shm("shm_thread", ProcessGroupOptions::Lane::kThread),
                      over_memory("memory", Lane::Mode::kInline),
                      over_memory("memory_thread", Lane::Mode::kThread)),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::internal
