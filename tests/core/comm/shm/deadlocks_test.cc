// Ranks that wait for each other in a cycle of groups, or seem to.
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/process_group.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::run_ranks_expecting_errors;
using Lane = ProcessGroupOptions::Lane;

/// Long enough that a cycle of waits is seen before it.
constexpr auto kAfterSuspicion = std::chrono::milliseconds(2500);

TEST(Deadlocks, ATimeOutExplainsASkippedCollectiveAmongTwoGroups) {
  for (const Lane lane : {Lane::kInline, Lane::kThread}) {
    const auto errors = run_ranks_expecting_errors(
        3,
        [](const std::shared_ptr<ProcessGroup>& world) {
          auto control = duplicate(*world, "control");
          world->barrier("before");
          control->barrier("before");
          at::Tensor bucket = at::zeros({10});
          if (world->rank() != 1) world->all_reduce(bucket, ReduceOp::kSum, "bucket 7")->wait();
          control->all_reduce(at::zeros({2}), ReduceOp::kSum, "vote")->wait();
        },
        {.timeout = kAfterSuspicion, .lane = lane});
    // One text for all, so nobody is said to wait for itself.
    EXPECT_THAT(errors,
                Each(HasSubstr(": timed out: waited 2500 ms; this may be a deadlock between "
                               "groups: rank 0 is in all_reduce SUM float32[10] 'bucket "
                               "7'")));
    EXPECT_THAT(errors, Each(HasSubstr("rank 1 is in all_reduce SUM float32[2] 'vote'")));
  }
}

TEST(Deadlocks, ACycleOfThreeGroupsIsFound) {
  const auto errors = run_ranks_expecting_errors(
      3,
      [](const std::shared_ptr<ProcessGroup>& world) {
        const std::vector<std::vector<int>> pairs = {{0, 1}, {1, 2}, {0, 2}};
        std::vector<std::shared_ptr<ProcessGroup>> groups;
        for (size_t i = 0; i < pairs.size(); ++i) {
          groups.push_back(world->subgroup(pairs[i], absl::StrCat("pair ", i)));
        }
        const int first[] = {0, 1,
                             2};  // rank r enters group first[r], whose other rank is elsewhere
        groups[first[world->rank()]]->barrier();
      },
      {.timeout = kAfterSuspicion});
  EXPECT_THAT(errors, Each(HasSubstr("deadlock between groups: rank 0 is in barrier '' #0 on group "
                                     "'world/pair 0' and waits for rank 1; rank 1 is in")));
}

/// Counts warnings of a thread's and opens a gate at the first.
class Warnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    const std::lock_guard lock(mutex_);
    texts_.push_back(warning.msg());
    if (texts_.size() == 1) first_.set_value();
  }
  std::shared_future<void> first() { return first_future_; }
  std::vector<std::string> texts() const {
    const std::lock_guard lock(mutex_);
    return texts_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;
  std::promise<void> first_;
  std::shared_future<void> first_future_ = first_.get_future().share();
};

/// Ranks wait for each other in a cycle, but one of them has a thread that will serve the other
/// group: nobody can know. It comes once the suspicion has been said.
void wait_until_suspected(int size, Warnings& warnings) {
  testing::run_ranks(size,
                     [&](const std::shared_ptr<ProcessGroup>& world) {
                       c10::WarningUtils::WarningHandlerGuard handler(&warnings);
                       auto other = duplicate(*world, "other");
                       other->barrier("before");
                       if (world->rank() == 0) {
                         auto late = std::async(std::launch::async, [&] {
                           warnings.first().wait();
                           other->barrier("late");
                         });
                         world->barrier("usual");
                         late.get();
                       } else {
                         other->barrier("late");
                         world->barrier("usual");
                       }
                       // All go on, and nothing is said twice.
                       other->barrier("more");
                     },
                     {.timeout = std::chrono::seconds(50)});
}

TEST(Deadlocks, AGroupThatAnotherThreadServesLateIsOnlySuspected) {
  for (const int size : {2, 3}) {
    Warnings warnings;
    wait_until_suspected(size, warnings);
    ASSERT_EQ(warnings.texts().size(), 1u) << "each suspicion is said by one rank";
    EXPECT_THAT(warnings.texts()[0],
                HasSubstr("deadlock between groups: rank 0 is in barrier 'usual' #"));
    EXPECT_THAT(warnings.texts()[0], HasSubstr("rank 1 is in barrier 'late' #"));
    EXPECT_THAT(warnings.texts()[0], HasSubstr("50000 ms"));
  }
}

// A rank that computes, however long, ends every chain of waits: the detector must not fire. Here
// it takes as long as a cycle elsewhere that begins later and is suspected.
TEST(Deadlocks, ASlowRankIsNoDeadlock) {
  Warnings warnings;
  testing::run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& world) {
    c10::WarningUtils::WarningHandlerGuard handler(&warnings);
    auto low = world->subgroup({0, 1}, "low");
    auto high = world->subgroup({1, 2}, "high");
    world->barrier("before");
    if (world->rank() == 2) {
      Warnings elsewhere;
      wait_until_suspected(2, elsewhere);
      EXPECT_EQ(elsewhere.texts().size(), 1u);
    }
    if (high != nullptr) high->barrier("rank 1 waits for rank 2");
    if (low != nullptr) low->barrier("rank 0 waits for rank 1");
  });
  EXPECT_THAT(warnings.texts(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace tessera::internal
