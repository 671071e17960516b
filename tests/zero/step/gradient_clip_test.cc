#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tessera/tests/support/message_of.h"
#include "tessera/tests/zero/engine/engine_fixture.h"

// Refusals of clipping, and its treatment of gradients that are not finite.
// equivalence/gradient_policy_test.cc shows that it has the same bits everywhere.

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

std::vector<std::string> refusals_of(const std::function<void(Options&, int rank)>& change) {
  return run_ranks_expecting_errors(3, [&](const std::shared_ptr<ProcessGroup>& world) {
    OptimizerPlan plan(
        adamw(),
        {{"biases", [](std::string_view name) { return name.ends_with("bias"); }, adamw()}});
    Options options = small_options_of(configuration_of(Strategy::kZero2));
    change(options, world->rank());
    parallelize(make_net(), plan, options, world);
  });
}

TEST(GradientClip, AGroupThatThePlanHasNotIsRefused) {
  EXPECT_THAT(refusals_of([](Options& options, int) {
                options.max_grad_norm_by_group = {{"biases", 1.0}, {"weights", 1.0}};
              }),
              Each(HasSubstr("max_grad_norm_by_group: got group 'weights', expected a group of the "
                             "optimizer's (defaults, biases)")));
  EXPECT_THAT(refusals_of([](Options& options, int) {
                options.max_grad_norm_by_group = {{"biases", 1.0}, {"defaults", 1.0}};
              }),
              Each(""))
      << "the control";
}

TEST(GradientClip, OtherOptionsOnOneRankAreNamedOnAll) {
  const auto on_last = [](const std::function<void(Options&)>& change) {
    return refusals_of([&change](Options& options, int rank) {
      if (rank == 2) change(options);
    });
  };
  EXPECT_THAT(on_last([](Options& options) { options.grad_norm_type = 1.0; }),
              Each(AllOf(HasSubstr("grad_norm_type 2"), HasSubstr("grad_norm_type 1"))));
  EXPECT_THAT(on_last([](Options& options) { options.max_grad_value = 0.5; }),
              Each(HasSubstr("max_grad_value 0.5")));
  EXPECT_THAT(on_last([](Options& options) { options.gradient_divide_factor = 1.5; }),
              Each(HasSubstr("gradient_divide_factor 1.5")));
  EXPECT_THAT(on_last([](Options& options) { options.max_grad_norm_by_group["biases"] = 0.25; }),
              Each(HasSubstr("max_grad_norm_by_group 'biases' 0.25")));
}

/// Neither a clamp nor a maximum hides a value that is not finite.
TEST(GradientClip, StopsAtWhatIsNotFinite) {
  for (const double p : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    for (const double bad :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& world) {
        Options options = small_options_of(configuration_of(Strategy::kZero2));
        options.grad_norm_type = p;
        options.max_grad_value = 0.01;
        const OddRank rank(world, options);
        const at::Tensor loss = rank.loss(0);
        (world->rank() == 1 ? loss * bad : loss).backward();
        EXPECT_THAT(message_of([&] { rank.engine->step(); }),
                    HasSubstr("[step] non-finite gradient: rank 1 produced"));
        rank.engine->zero_grad();
        EXPECT_TRUE(rank.train(1).committed);
      });
    }
  }
}

/// Only the mean overflows; the gradients are finite on every rank.
TEST(GradientClip, StopsAtAMeanThatOverflowsAlthoughItWouldBeClamped) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    Options options = small_options_of(configuration_of(Strategy::kZero2));
    options.max_grad_value = 0.01;
    const OddRank rank(world, options);
    (rank.loss(0) * 0.0 + rank.net->parameters()[0].sum() * 1.5e308).backward();
    EXPECT_THAT(message_of([&] { rank.engine->step(); }),
                HasSubstr("every rank's gradient is finite, the norm of their mean is not"));
  });
}

}  // namespace
}  // namespace tessera::internal::testing
