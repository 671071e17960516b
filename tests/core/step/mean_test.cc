#include "tessera/mean.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal::testing {
namespace {

TEST(Mean, IsWeighted) {
  Mean mean;
  EXPECT_TRUE(std::isnan(mean.value()));
  mean.add(2.0, 3);
  mean.add(at::full({1}, 6.0), 1);
  mean.add(std::numeric_limits<double>::quiet_NaN(), 0);
  EXPECT_EQ(mean.value(), 3.0);
  EXPECT_EQ(mean.weight(), 4.0);
  Mean copy = mean;
  copy.add(3.0 + 4.0, 4);
  EXPECT_EQ(copy.value(), 5.0);
  EXPECT_EQ(mean.value(), 3.0);
  mean = std::move(copy);
  EXPECT_EQ(mean.value(), 5.0);
  mean.add(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(mean.value()));
}

TEST(Mean, RefusesWhatIsNoWeightAndNoNumber) {
  Mean mean;
  EXPECT_THROW(mean.add(1.0, -1.0), c10::Error);
  EXPECT_THROW(mean.add(1.0, std::numeric_limits<double>::quiet_NaN()), c10::Error);
  EXPECT_THROW(mean.add(1.0, std::numeric_limits<double>::infinity()), c10::Error);
  EXPECT_THROW(mean.add(at::ones({2})), c10::Error);
  EXPECT_THROW(mean.add(at::Tensor()), c10::Error);
}

/// The mean has the same bits however the numbers are distributed over ranks.
TEST(Mean, OverRanksDoesNotDependOnHowNumbersAreSharedOut) {
  const auto number = [](int i) { return std::sin(i) * std::pow(10.0, i % 17); };
  Mean alone;
  for (int i = 0; i < 40; ++i) alone.add(number(i), 1 + i % 5);
  for (const int size : {1, 2, 3, 4}) {
    run_ranks(size, [&](const std::shared_ptr<ProcessGroup>& world) {
      Mean mean;
      for (int i = 0; i < 40; ++i) {
        if ((i * i) % size == world->rank()) mean.add(number(i), 1 + i % 5);
      }
      const Mean all = mean.over_ranks(*world);
      EXPECT_EQ(all.value(), alone.value());
      EXPECT_EQ(all.weight(), alone.weight());
    });
  }
}

}  // namespace
}  // namespace tessera::internal::testing
