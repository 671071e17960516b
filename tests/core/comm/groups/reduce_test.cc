// Errors of reduce; its bits are tested in collectives_test.cc.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/process_group.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::message_of;
using testing::run_ranks;
using testing::run_ranks_expecting_errors;

TEST(Reduce, RefusesARootThatIsNoneAndRootsThatDiffer) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    const at::Tensor tensor = at::ones({3});
    for (const int root : {-1, 2}) {
      EXPECT_THAT(message_of([&] { group->reduce(tensor, ReduceOp::kSum, root); }),
                  HasSubstr("[comm] reduce: got root " + std::to_string(root) +
                            ", expected 0 to 1; roots are numbered within the group"));
    }
    EXPECT_THAT(message_of([&] { group->reduce(at::ones({3}, at::kInt), ReduceOp::kAvg, 0); }),
                HasSubstr("[comm] reduce: got AVG of Int"));
  });
  const std::vector<std::string> errors =
      run_ranks_expecting_errors(2, [](std::shared_ptr<ProcessGroup> group) {
        group->reduce(at::ones({3}), ReduceOp::kMax, group->rank(), "odd")->wait();
      });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("reduce MAX float32[3] to rank 0 'odd'"),
                                 HasSubstr("reduce MAX float32[3] to rank 1 'odd'"))));
}

/// A backend that has everything but reduce.
class WithoutReduce final : public ForwardingGroup {
 public:
  explicit WithoutReduce(std::shared_ptr<ProcessGroup> inner) : ForwardingGroup(std::move(inner)) {}
  std::shared_ptr<Work> run(const Collective& collective) override {
    if (collective.op == Op::kReduce) refuse(collective);
    return inner_->run(collective);
  }
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override {
    return std::make_shared<WithoutReduce>(std::move(inner));
  }
};

TEST(Reduce, MayBeLackedByABackend) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> world) {
    WithoutReduce group(std::move(world));
    EXPECT_THAT(message_of([&] { group.reduce(at::ones({3}), ReduceOp::kSum, 0, "none"); }),
                HasSubstr("[comm] reduce 'none': got a group of backend 'shm', expected one that "
                          "has this operation"));
    group.all_reduce(at::ones({3}), ReduceOp::kSum)->wait();
  });
}

}  // namespace
}  // namespace tessera::internal
