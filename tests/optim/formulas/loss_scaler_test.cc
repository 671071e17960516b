#include "tessera/optim/formulas/loss_scaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include <c10/util/Exception.h>

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

void good_steps(LossScaler& scaler, int64_t count) {
  for (int64_t i = 0; i < count; ++i) scaler.update(/*overflowed=*/false);
}

TEST(LossScaler, BeginsWhereGradScalerDoes) {
  const LossScaler scaler{LossScale{}};
  EXPECT_EQ(scaler.scale(), 65536.0);
  EXPECT_EQ(scaler.good_steps(), 0);
}

TEST(LossScaler, DoublesAfterEvery2000GoodSteps) {
  LossScaler scaler{LossScale{}};
  good_steps(scaler, 1999);
  EXPECT_EQ(scaler.scale(), 65536.0);
  EXPECT_EQ(scaler.good_steps(), 1999);
  good_steps(scaler, 1);
  EXPECT_EQ(scaler.scale(), 131072.0);
  EXPECT_EQ(scaler.good_steps(), 0);
  good_steps(scaler, 2000);
  EXPECT_EQ(scaler.scale(), 262144.0);
}

TEST(LossScaler, HalvesAtOnceAndCountsAnew) {
  LossScaler scaler{LossScale{}};
  good_steps(scaler, 1999);
  scaler.update(/*overflowed=*/true);
  EXPECT_EQ(scaler.scale(), 32768.0);
  EXPECT_EQ(scaler.good_steps(), 0);
  scaler.update(/*overflowed=*/true);
  EXPECT_EQ(scaler.scale(), 16384.0);
  good_steps(scaler, 1999);
  EXPECT_EQ(scaler.scale(), 16384.0);
  good_steps(scaler, 1);
  EXPECT_EQ(scaler.scale(), 32768.0);
}

/// aten/src/ATen/native/cuda/AmpKernels.cu, amp_update_scale_cuda_kernel, step by step.
TEST(LossScaler, FollowsGradScalerOverALongRun) {
  const LossScale schedule{.initial = 1024.0, .growth = 2.0, .backoff = 0.5, .growth_interval = 3};
  LossScaler scaler{schedule};
  double scale = schedule.initial;
  int64_t growth_tracker = 0;
  uint32_t random = 12345;
  for (int step = 0; step < 500; ++step) {
    random = random * 1664525U + 1013904223U;
    const bool found_inf = random >> 30 == 0;  // a quarter of the steps
    if (found_inf) {
      scale *= schedule.backoff;
      growth_tracker = 0;
    } else if (++growth_tracker == schedule.growth_interval) {
      scale *= schedule.growth;
      growth_tracker = 0;
    }
    scaler.update(found_inf);
    ASSERT_EQ(scaler.scale(), scale) << "step " << step;
    ASSERT_EQ(scaler.good_steps(), growth_tracker) << "step " << step;
  }
}

TEST(LossScaler, NeverLeavesTheNumbersOfFp32) {
  LossScaler growing{LossScale{.growth_interval = 1}};
  good_steps(growing, 5000);
  EXPECT_TRUE(std::isfinite(static_cast<float>(growing.scale())));
  EXPECT_EQ(growing.scale(), std::ldexp(1.0, 127));
  LossScaler shrinking{LossScale{}};
  for (int i = 0; i < 5000; ++i) shrinking.update(/*overflowed=*/true);
  EXPECT_EQ(shrinking.scale(), std::ldexp(1.0, -126));
  EXPECT_TRUE(std::isfinite(1.0F / static_cast<float>(shrinking.scale())));
}

TEST(LossScaler, MayBeFixed) {
  LossScaler scaler{LossScale{.initial = 8.0, .growth = 1.0, .backoff = 1.0, .growth_interval = 1}};
  scaler.update(true);
  good_steps(scaler, 10);
  EXPECT_EQ(scaler.scale(), 8.0);
}

TEST(LossScaler, ContinuesARun) {
  LossScaler first{LossScale{}};
  good_steps(first, 1500);
  LossScaler second{LossScale{}};
  second.load(first.scale(), first.good_steps());
  good_steps(second, 500);
  EXPECT_EQ(second.scale(), 131072.0);
}

/// A run saved with a longer interval grows its scale at its next good step.
TEST(LossScaler, GrowsAtOnceWhenTheIntervalBecameShorter) {
  LossScaler scaler{LossScale{.growth_interval = 10}};
  scaler.load(4.0, 1500);
  good_steps(scaler, 1);
  EXPECT_EQ(scaler.scale(), 8.0);
  EXPECT_EQ(scaler.good_steps(), 0);
}

TEST(LossScaler, RefusesValuesOutOfRange) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto refuses = [](const LossScale& schedule, const char* text) {
    EXPECT_THAT([&] { LossScaler{schedule}; }, ThrowsMessage<c10::Error>(HasSubstr(text)));
  };
  for (const double bad : {0.0, -1.0, 1e-40, 1e39, infinity, nan}) {
    refuses({.initial = bad}, "[optim] loss_scale.initial: got ");
  }
  for (const double bad : {0.5, infinity, nan}) {
    refuses({.growth = bad}, "[optim] loss_scale.growth: got ");
  }
  for (const double bad : {0.0, 1.5, nan}) {
    refuses({.backoff = bad}, "[optim] loss_scale.backoff: got ");
  }
  refuses({.growth_interval = 0}, "[optim] loss_scale.growth_interval: got 0");

  LossScaler scaler{LossScale{}};
  for (const double bad : {0.0, -2.0, 1e-40, 1e39, infinity, nan}) {
    EXPECT_THAT([&] { scaler.load(bad, 0); },
                ThrowsMessage<c10::Error>(HasSubstr("[optim] loss scale: got ")));
  }
  EXPECT_THAT([&] { scaler.load(1.0, -1); },
              ThrowsMessage<c10::Error>(HasSubstr("-1 good steps, expected at least 0")));
  EXPECT_EQ(scaler.scale(), 65536.0);
}

}  // namespace
}  // namespace tessera::internal
