#include "tessera/tests/faults/fault_ranks.h"

#include <chrono>
#include <condition_variable>
#include <mutex>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::internal::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Not;

// Negative controls of the helpers of this folder.

TEST(FaultRanks, MatcherWantsTheSameTextOnEveryRank) {
  const auto refuse_with_own_text = [](std::shared_ptr<ProcessGroup> world) {
    TORCH_CHECK(false, "[test] rank ", world->rank(), " refuses");
  };
  const auto outcomes = outcomes_of_ranks(2, refuse_with_own_text);
  EXPECT_THAT(outcomes, ElementsAre(is_misuse("rank 0 refuses"), is_misuse("rank 1 refuses")));
  EXPECT_THAT(outcomes, Not(every_rank_refuses({"refuses"})));
}

TEST(FaultRanks, MatcherWantsEveryPart) {
  const std::vector<Ending> outcomes(2, {Ending::Kind::kMisuse, "[a] rank 1: b"});
  EXPECT_THAT(outcomes, every_rank_refuses({"[a]", "rank 1"}));
  EXPECT_THAT(outcomes, Not(every_rank_refuses({"[a]", "rank 0"})));
  EXPECT_THAT(std::vector<Ending>(), Not(every_rank_refuses({})));
}

TEST(FaultRanks, MatcherWantsTheKindOnEveryRank) {
  const auto refuse_on_one = [](std::shared_ptr<ProcessGroup> world) {
    TORCH_CHECK(world->rank() != 1, "[test] refused");
  };
  const auto outcomes = outcomes_of_ranks(3, refuse_on_one);
  EXPECT_THAT(outcomes, ElementsAre(is_fine(), is_misuse("[test] refused"), is_fine()));
  EXPECT_THAT(outcomes, Not(every_rank_refuses({"[test] refused"})));
  EXPECT_THAT(std::vector<Ending>(2, {Ending::Kind::kComm, "x"}), Not(every_rank_refuses({"x"})));
  EXPECT_THAT(std::vector<Ending>(2, {Ending::Kind::kMisuse, "x"}),
              Not(every_rank_loses_contact({"x"})));
}

TEST(FaultRanks, OutcomesAreThoseOfTheRanks) {
  const auto outcomes = outcomes_of_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    if (world->rank() == 0) throw CommError({}, "lost");
    if (world->rank() == 1) throw std::runtime_error("other");
  });
  EXPECT_THAT(outcomes, ElementsAre(is_comm_error("lost"), is_other("other"), is_fine()));
}

TEST(FaultRanksDeathTest, DeadlineCatchesAStuckRank) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto get_stuck = [](std::shared_ptr<ProcessGroup> world) {
    std::mutex mutex;
    std::condition_variable never;
    std::unique_lock<std::mutex> lock(mutex);
    if (world->rank() == 1) never.wait(lock, [] { return false; });
  };
  // Time by which the ranks must have met.
  constexpr auto kDeadline = std::chrono::milliseconds(2000);
  EXPECT_DEATH(
      outcomes_of_ranks(2, get_stuck, ProcessGroupOptions::Lane::kInline, kGroupTimeout, kDeadline),
      absl::StrCat("ranks did not finish within ", kDeadline.count(),
                   " ms(.|\n)*rank 1: in its body"));
}

// A rank that waits for a peer that never comes is stuck too; the group's own time-out is longer.
TEST(FaultRanksDeathTest, DeadlineCatchesAHangInACollective) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hang = [](std::shared_ptr<ProcessGroup> world) {
    std::mutex mutex;
    std::condition_variable never;
    std::unique_lock<std::mutex> lock(mutex);
    if (world->rank() == 1) never.wait(lock, [] { return false; });
    world->barrier("alone");
  };
  EXPECT_DEATH(outcomes_of_ranks(2, hang, ProcessGroupOptions::Lane::kInline, kGroupTimeout,
                                 std::chrono::milliseconds(300)),
               "ranks did not finish within 300 ms");
}

}  // namespace
}  // namespace tessera::internal::testing
