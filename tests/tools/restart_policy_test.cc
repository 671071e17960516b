#include "tessera/tools/run/restart_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tessera::internal {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

AttemptEnd failure(int exit_code, int64_t step = 0, int64_t saved_step = 0) {
  return {.exit_code = exit_code,
          .is_failure = true,
          .step = step,
          .has_trained = step > 0,
          .saved_step = saved_step};
}

TEST(RestartPolicyTest, NothingStartsAgainUnlessAsked) {
  RestartPolicy policy(0, milliseconds(1000));
  const auto decision = policy.after(failure(1));
  EXPECT_FALSE(decision.restarts);
  EXPECT_EQ(decision.text, "");
}

TEST(RestartPolicyTest, PausesGrowToHalfAMinute) {
  RestartPolicy policy(8, milliseconds(1000));
  std::vector<int64_t> pauses;
  for (int i = 0; i < 8; ++i) {
    const auto decision = policy.after(failure(1));
    EXPECT_TRUE(decision.restarts);
    pauses.push_back(decision.pause.count());
  }
  EXPECT_THAT(pauses, ElementsAre(1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000));
  const auto last = policy.after(failure(1));
  EXPECT_FALSE(last.restarts);
  EXPECT_EQ(last.text, "not starting again: 8 restarts without a newly saved step");
  RestartPolicy slow(2, milliseconds(45000));
  EXPECT_EQ(slow.after(failure(1)).text, "starting again in 45 s (restart 1 of 2)");
  EXPECT_EQ(slow.after(failure(1)).pause.count(), 45000);
}

TEST(RestartPolicyTest, WhatWouldFailAgainIsFinal) {
  for (const int code : {64, 65, 66, 77, 78}) {
    const auto decision = RestartPolicy(3, milliseconds(1)).after(failure(code));
    EXPECT_FALSE(decision.restarts) << code;
    EXPECT_THAT(decision.text, HasSubstr("not starting again: exit code "));
  }
  for (const int code : {1, 63, 67, 76, 79, 137}) {
    EXPECT_TRUE(RestartPolicy(3, milliseconds(1)).after(failure(code)).restarts) << code;
  }
}

TEST(RestartPolicyTest, SuccessSignalsAndOwnFailuresAreFinal) {
  const auto decision = RestartPolicy(3, milliseconds(1)).after({.exit_code = 143});
  EXPECT_FALSE(decision.restarts);
  EXPECT_EQ(decision.text, "");
}

TEST(RestartPolicyTest, TheSameFailureAtTheSameStepIsFinal) {
  RestartPolicy policy(9, milliseconds(1));
  EXPECT_TRUE(policy.after(failure(1, 137)).restarts);
  EXPECT_TRUE(policy.after(failure(2, 137)).restarts) << "another failure";
  EXPECT_TRUE(policy.after(failure(2, 138)).restarts) << "another step";
  EXPECT_TRUE(policy.after(failure(1, 137)).restarts) << "not twice in a row";
  const auto decision = policy.after(failure(1, 137, 130));
  EXPECT_FALSE(decision.restarts) << "even where a step was saved before it";
  EXPECT_EQ(decision.text,
            "not starting again: the start before failed in the same way, after the same step 137");
}

TEST(RestartPolicyTest, WithoutAStepTheSameFailureMayPass) {
  RestartPolicy policy(2, milliseconds(1));
  EXPECT_TRUE(policy.after(failure(1)).restarts);
  EXPECT_TRUE(policy.after(failure(1)).restarts);
}

TEST(RestartPolicyTest, AStepThatNoneBeforeHasSavedGivesAllRestartsBack) {
  RestartPolicy policy(2, milliseconds(1000));
  EXPECT_TRUE(policy.after(failure(1, 150, 100)).restarts);
  EXPECT_EQ(policy.after(failure(1, 160, 100)).pause, milliseconds(2000)) << "saved before";
  const auto refunded = policy.after(failure(1, 270, 200));
  EXPECT_EQ(refunded.text,
            "starting again in 1 s (restart 1 of 2; counted anew, as step 200 is saved)");
  EXPECT_TRUE(policy.after(failure(1, 180, 150)).restarts) << "of a run that went back";
  EXPECT_FALSE(policy.after(failure(1, 190, 150)).restarts);
}

}  // namespace
}  // namespace tessera::internal
