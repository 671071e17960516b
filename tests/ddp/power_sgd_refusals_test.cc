#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/power_sgd.h"
#include "tessera/tests/ddp/hooked_rank.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"

// What PowerSGD refuses when it is registered, on all ranks.

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

/// What all ranks of three say to a hook with `options`, rank 1 to `other`.
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

}  // namespace
}  // namespace tessera::internal::testing
