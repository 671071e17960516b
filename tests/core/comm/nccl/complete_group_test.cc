// The whole API of a process group over the fake NCCL, under random delays of every stream. Calls
// that NCCL lacks are refused by name.
#include <string>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/nccl/group.h"
#include "tessera/tests/core/comm/groups/group_suite.h"
#include "tessera/tests/core/comm/nccl/nccl_ranks.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal {
namespace {

using nccl::Group;
using testing::GroupBackend;
using ::testing::HasSubstr;
using testing::HostDevice;
using testing::message_of;

GroupBackend over_nccl() {
  GroupBackend backend{.name = "nccl", .world_sizes = {2, 3, 4}, .run = nullptr};
  backend.run = [](int size, const auto& body) {
    testing::NcclRankOptions options;
    options.device.longest_delay = std::chrono::microseconds(50);
    testing::run_nccl_ranks(
        size, [&](std::shared_ptr<Group> group, HostDevice&) { body(group); }, options);
  };
  backend.wait = [](Work& work) { nccl::wait_on_host(work); };
  backend.has_bitwise = false;
  backend.reduces_int16 = false;
  backend.has_any_source = false;
  backend.compares_counts = false;
  backend.matches_by_tag = false;
  backend.largest = 1001;
  return backend;
}

class CompleteNcclGroup : public ::testing::Test {
 protected:
  void SetUp() override { testing::fake().reset(); }
};

TEST_F(CompleteNcclGroup, Reductions) { test_reductions(over_nccl()); }
TEST_F(CompleteNcclGroup, Moves) { test_moves(over_nccl()); }
TEST_F(CompleteNcclGroup, UnevenAllToAll) { test_uneven_all_to_all(over_nccl()); }
TEST_F(CompleteNcclGroup, Subgroups) { test_subgroups(over_nccl()); }
TEST_F(CompleteNcclGroup, ArrivalInAnyOrder) { test_arrival_in_any_order(over_nccl()); }
TEST_F(CompleteNcclGroup, ThousandOperations) { test_thousand_operations(over_nccl()); }
TEST_F(CompleteNcclGroup, ChainedCalls) { test_chained_calls(over_nccl()); }
TEST_F(CompleteNcclGroup, ChainsBesideOtherCalls) { test_chains_beside_other_calls(over_nccl()); }
TEST_F(CompleteNcclGroup, Messages) { test_messages(over_nccl()); }
TEST_F(CompleteNcclGroup, Refusals) { test_refusals(over_nccl()); }

TEST_F(CompleteNcclGroup, AMessageThatIsNotSentIsNamedAtTheTimeOut) {
  const auto errors = testing::run_nccl_ranks_expecting_errors(
      2,
      [](std::shared_ptr<Group> group, HostDevice&) {
        if (group->rank() == 1) return testing::wait_for_failure(*group);
        at::Tensor tensor = at::zeros({3});
        nccl::wait_on_host(*group->irecv(tensor, 1, "late"));
      },
      testing::impatient());
  EXPECT_THAT(errors[0], HasSubstr("recv 'late' on group 'world', rank 0: " +
                                   testing::waited_impatiently() + "rank 1"));
  EXPECT_THAT(errors[0], HasSubstr("in recv float32[3] from rank 1 'late'"));
}

}  // namespace
}  // namespace tessera::internal
