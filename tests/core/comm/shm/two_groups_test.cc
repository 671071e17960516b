// Ranks that wait for each other in calls of different groups.
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/process_group.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/warnings_of_ranks.h"

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Lane = ProcessGroupOptions::Lane;

constexpr auto kTimeOut = std::chrono::milliseconds(1000);

TEST(TwoGroups, ATimeOutNamesTheCallsOfBoth) {
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
        {.timeout = kTimeOut, .lane = lane});
    // Each rank's error has the cause that the first rank found.
    EXPECT_THAT(errors,
                Each(AllOf(HasSubstr(": timed out: rank "), HasSubstr(" waited 1000 ms in "),
                           HasSubstr("all_reduce SUM float32[10] 'bucket 7'"),
                           HasSubstr("all_reduce SUM float32[2] 'vote'"))));
  }
}

TEST(TwoGroups, ACycleOfThreeEndsAllRanks) {
  const auto errors = run_ranks_expecting_errors(
      3,
      [](const std::shared_ptr<ProcessGroup>& world) {
        const std::vector<std::vector<int>> pairs = {{0, 1}, {1, 2}, {0, 2}};
        std::vector<std::shared_ptr<ProcessGroup>> groups;
        for (size_t i = 0; i < pairs.size(); ++i) {
          groups.push_back(world->subgroup(pairs[i], absl::StrCat("pair ", i)));
        }
        // Rank r enters group first[r], whose other rank is in another group.
        const int first[] = {0, 1, 2};
        groups[first[world->rank()]]->barrier();
      },
      {.timeout = kTimeOut});
  EXPECT_THAT(errors, Each(HasSubstr(" waited 1000 ms in barrier '' #0 on group 'world/pair ")));
  EXPECT_THAT(errors, Each(HasSubstr(", in #0 barrier")));
}

/// Ranks wait for each other, but one has a thread that will serve the other group, which no rank
/// can know. It does so after the long wait was reported.
TEST(TwoGroups, ALongWaitIsReportedWithTheCallsOfBothAndEndsNothing) {
  for (const int size : {2, 3}) {
    WarningsOfRanks warnings;
    run_ranks(size,
              [&](const std::shared_ptr<ProcessGroup>& world) {
                const c10::WarningUtils::WarningHandlerGuard handler(&warnings);
                auto other = duplicate(*world, "other");
                other->barrier("before");
                if (world->rank() == 0) {
                  auto late = std::async(std::launch::async, [&] {
                    warnings.await();
                    other->barrier("late");
                  });
                  world->barrier("usual");
                  late.get();
                } else {
                  other->barrier("late");
                  world->barrier("usual");
                }
                other->barrier("more");
              },
              {.timeout = kPatience, .report_after = std::chrono::milliseconds(200)});
    EXPECT_THAT(warnings.texts(), Each(HasSubstr(" has waited ")));
    EXPECT_THAT(warnings.texts()[0],
                AllOf(HasSubstr("barrier 'usual'"), HasSubstr("barrier 'late'")));
  }
}

TEST(TwoGroups, AShortWaitIsNotReported) {
  WarningsOfRanks warnings;
  run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& world) {
    const c10::WarningUtils::WarningHandlerGuard handler(&warnings);
    world->barrier();
  });
  EXPECT_THAT(warnings.texts(), IsEmpty());
}

}  // namespace
}  // namespace tessera::internal::testing
