#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/join.h"
#include "tessera/power_sgd.h"
#include "tessera/tests/ddp/hooked_rank.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"

// What PowerSGD refuses at registration, on all ranks.

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

/// Returns the errors of three ranks for a hook with `options`, on rank 1 with `other`.
std::vector<std::string> powersgd_refusals(const PowerSgdOptions& options,
                                           const PowerSgdOptions& other,
                                           const std::function<void(Options&)>& adjust = {}) {
  std::vector<std::string> messages(3);
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> world) {
    Options engine = HookedRank::small_ddp();
    if (adjust) adjust(engine);
    HookedRank rank(world, nullptr, "OddMlp", engine);
    messages[static_cast<size_t>(world->rank())] = message_of([&] {
      rank.engine->register_comm_hook(power_sgd_hook(world->rank() == 1 ? other : options));
    });
  });
  return messages;
}

TEST(PowerSgdRefusals, OptionsOutOfRange) {
  EXPECT_THAT(powersgd_refusals({}, {.matrix_approximation_rank = 0,
                                     .start_power_sgd_iter = -1,
                                     .min_compression_rate = 0,
                                     .orthogonalization_epsilon = -1}),
              Each(AllOf(HasSubstr("[comm hook] rank 1: register_comm_hook: 'powersgd'"),
                         HasSubstr("matrix_approximation_rank: got 0, expected at least 1"),
                         HasSubstr("start_power_sgd_iter: got -1, expected at least 0"),
                         HasSubstr("min_compression_rate: got 0, expected a finite number above 0"),
                         HasSubstr("orthogonalization_epsilon: got -1"))));
}

TEST(PowerSgdRefusals, OptionsThatDiffer) {
  EXPECT_THAT(powersgd_refusals({}, {.random_seed = 7}),
              Each(AllOf(HasSubstr("[register_comm_hook] rank 1 differs from rank 0"),
                         HasSubstr("seed 7"))));
}

TEST(PowerSgdRefusals, LossScalesAndNarrowCommunication) {
  EXPECT_THAT(powersgd_refusals({}, {}, [](Options& options) { options.loss_scale.emplace(); }),
              Each(AllOf(HasSubstr("all ranks"), HasSubstr("got Options::loss_scale"))));
  EXPECT_THAT(
      powersgd_refusals({}, {},
                        [](Options& options) { options.precision.communication = at::kBFloat16; }),
      Each(AllOf(HasSubstr("gradients communicated in BFloat16, expected Float or Double"),
                 HasSubstr("Precision::communication"))));
}

/// Expects refusals on three ranks of a weighted loss, and of a join() that divides by active
/// ranks.
void expect_units_of_gradients_refused(bool use_error_feedback) {
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> world) {
    const auto hook = power_sgd_hook({.use_error_feedback = use_error_feedback});
    HookedRank rank(std::move(world), hook, "OddMlp", HookedRank::small_ddp());
    const std::string weight =
        message_of([&] { rank.engine->backward(rank.loss(0), {.weight = 2}); });
    rank.engine->zero_grad();
    std::vector<int> batches = {0};
    const std::string join = message_of([&] {
      for (const int batch : rank.engine->join(batches)) (void)batch;
    });
    EXPECT_EQ(
        weight.find("got a weight beside the communication hook 'powersgd'") != std::string::npos,
        use_error_feedback)
        << weight;
    EXPECT_EQ(join.find("got Divide::kByActive beside the communication hook 'powersgd'") !=
                  std::string::npos,
              use_error_feedback)
        << join;
    const JoinOptions by_world{.divide = JoinOptions::Divide::kByWorld};
    for (const int batch : rank.engine->join(batches, by_world)) {
      rank.loss(batch).backward();
      rank.engine->step();
    }
    EXPECT_EQ(rank.engine->steps(), 1);
  });
}

// Multiplying all weights of every second step by a number must not change the training.
TEST(PowerSgdRefusals, ErrorsOfStepsOfOtherUnits) {
  expect_units_of_gradients_refused(/*use_error_feedback=*/true);
  expect_units_of_gradients_refused(/*use_error_feedback=*/false);
}

}  // namespace
}  // namespace tessera::internal::testing
