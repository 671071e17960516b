#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "tessera/tests/zero/engine/engine_fixture.h"

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

TEST(UpdateInBackward, WhatItCannotBeUsedWithIsRefusedTogether) {
  const auto refusal = [](int world, const std::function<void(Options&)>& change) {
    return run_ranks_expecting_errors(world, [&](std::shared_ptr<ProcessGroup> group) {
      Options options{.strategy = Strategy::kZero2, .optimizer_in_backward = true};
      change(options);
      parallelize(make_net(), adamw(), options, group);
    });
  };
  EXPECT_THAT(refusal(3, [](Options&) {}), Each(""));
  EXPECT_THAT(refusal(3,
                      [](Options& options) {
                        options.strategy = Strategy::kZero1;
                        options.max_grad_norm = 1.0;
                        options.loss_scale = LossScale{};
                        options.on_non_finite = NonFinite::kSkip;
                      }),
              Each(AllOf(HasSubstr("optimizer_in_backward: is set beside max_grad_norm"),
                         HasSubstr("beside loss_scale"), HasSubstr("beside on_non_finite = skip"),
                         HasSubstr("strategy zero1 splits gradients over 1 and the optimizer over "
                                   "3 of 3 ranks"))));
  EXPECT_THAT(refusal(2,
                      [](Options& options) {
                        options.ask_non_finite = [](const NonFiniteReport&) {
                          return NonFinite::kStop;
                        };
                      }),
              Each(HasSubstr("optimizer_in_backward: is set beside ask_non_finite")));
  for (const int world : {1, 3}) {
    EXPECT_THAT(refusal(world, [](Options& options) { options.strategy = Strategy::kDdp; }),
                Each(HasSubstr("strategy ddp splits gradients over 1")));
  }
  EXPECT_THAT(refusal(4,
                      [](Options& options) {
                        options.strategy = Strategy::kHybrid;
                        options.degrees = Degrees{1, 2, 2};
                      }),
              Each(HasSubstr("strategy hybrid splits gradients over 2 and the optimizer over 2")));
}

}  // namespace
}  // namespace tessera::internal::testing
