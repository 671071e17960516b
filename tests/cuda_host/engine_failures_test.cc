// Failures of an engine over the nccl group: a CommError on every rank, and never a hang.
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/tests/core/comm/nccl/nccl_ranks.h"
#include "tessera/tests/cuda_host/nccl_worlds.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kWorld = 3;
/// Time-out for tests that wait for it. The ranks must have met and taken a step within it, too.
constexpr auto kLimit = std::chrono::milliseconds(1500);

std::string waited_for_limit() {
  return absl::StrCat("timed out: waited ", kLimit.count(), " ms for ");
}

class EngineLimits : public ::testing::Test {
 protected:
  void SetUp() override { fake().reset(); }
  void TearDown() override {
    fake().reset();
    await_no_communicators();
  }
};

class EngineFailures : public EngineLimits, public ::testing::WithParamInterface<Configuration> {};

std::vector<std::string> train_expecting_errors(const Subject& trained,
                                                const Configuration& configuration,
                                                const TrainOptions& options,
                                                std::chrono::milliseconds timeout) {
  const Decorate make = over_nccl({.timeout = timeout});
  return run_ranks_expecting_errors(kWorld, [&](std::shared_ptr<ProcessGroup> world) {
    world = make(std::move(world));
    train(trained, at::kFloat, configuration, schedules().front(), world, options);
  });
}

/// Throws in the second forward on rank 1.
struct Throwing : Net {
  at::Tensor forward(const at::Tensor& input, const Moment& moment) override {
    const at::Tensor hidden = at::tanh(first(input));
    if (moment.step == 1 && moment.rank == 1) throw std::runtime_error("a broken batch");
    return last(hidden);
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(7, 13));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(13, 5));
};

TEST_P(EngineFailures, ARankThatThrowsInForwardLeavesNoHang) {
  const Subject throwing = {.name = "Throwing",
                            .make = [] { return std::make_shared<Throwing>(); },
                            .input_shape = {7},
                            .target_shape = {5}};
  const auto errors = train_expecting_errors(throwing, GetParam(), {}, std::chrono::seconds(20));
  EXPECT_THAT(errors[1], HasSubstr("a broken batch"));
  for (const int rank : {0, 2}) {
    EXPECT_THAT(errors[rank], HasSubstr("rank 1 left while an exception unwound"));
  }
}

TEST_P(EngineFailures, ATimeOutInAStepNamesTheUnitOnEveryRank) {
  TrainOptions options;
  options.after_step = [](Engine& engine, int step) {
    if (step == 1 && engine.group().rank() == 0) fake().hold();
  };
  const auto errors = train_expecting_errors(subject("OddMlp"), GetParam(), options, kLimit);
  EXPECT_THAT(errors, Each(AllOf(HasSubstr(waited_for_limit()),
                                 ContainsRegex("\\[comm\\] .*'(bucket|layer)[ 0-9]+' on group "))));
}

/// The host's channel has the same time-out.
TEST_P(EngineFailures, ARankThatDoesNotStepIsNamed) {
  const Decorate make = over_nccl({.timeout = kLimit});
  const auto errors = run_ranks_expecting_errors(kWorld, [&](std::shared_ptr<ProcessGroup> world) {
    const int rank = world->rank();
    world = make(std::move(world));
    Schedule schedule = schedules().front();
    if (rank == 2) --schedule.steps;
    train(subject("OddMlp"), at::kFloat, GetParam(), schedule, world);
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(errors[rank], HasSubstr(waited_for_limit() + "rank 2, which left"));
  }
}

INSTANTIATE_TEST_SUITE_P(, EngineFailures, ::testing::ValuesIn(named_configurations()),
                         [](const auto& info) { return info.param.name; });

/// A limitation: gathers are collectives here.
TEST_F(EngineLimits, RanksThatGatherMoreOrLessThanOthersAreToldSo) {
  const auto errors =
      train_expecting_errors(subject("Branches"), configuration_of(Strategy::kZero3), {}, kLimit);
  EXPECT_THAT(errors, Each(AllOf(HasSubstr(waited_for_limit()),
                                 ContainsRegex("\\[comm\\] all_gather #[0-9]+ '"))));
}

/// Equally many units of one size, so that NCCL confuses them.
struct Swapping : Net {
  at::Tensor forward(const at::Tensor& input, const Moment& moment) override {
    const at::Tensor x = at::tanh(first(input));
    return last(at::tanh(moment.rank == 1 ? one(x) : other(x)));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(7, 13));
  torch::nn::Linear one = register_module("one", torch::nn::Linear(13, 13));
  torch::nn::Linear other = register_module("other", torch::nn::Linear(13, 13));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(13, 5));
};

TEST_F(EngineLimits, UnitsTakenForEachOtherNeverReachAnUpdate) {
  const Subject swapping = {.name = "Swapping",
                            .make = [] { return std::make_shared<Swapping>(); },
                            .input_shape = {7},
                            .target_shape = {5}};
  const auto errors = train_expecting_errors(swapping, configuration_of(Strategy::kZero3), {},
                                             std::chrono::seconds(20));
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("[step] which units were gathered, and in which order "
                                           "(a hash of it) differs: rank 0 has "),
                                 HasSubstr("Nothing was applied."))));
}

TEST_F(EngineLimits, SecondShardsAreRefused) {
  const Decorate make = over_nccl();
  const auto errors = run_ranks_expecting_errors(4, [&](std::shared_ptr<ProcessGroup> world) {
    world = make(std::move(world));
    train(subject("OddMlp"), at::kFloat, resharding(2), schedules().front(), world);
  });
  EXPECT_THAT(errors, Each(HasSubstr("[options] reshard_after_forward: got 2, expected 1 or the 4 "
                                     "ranks that parameters are split over, because ranks of "
                                     "backend 'nccl' cannot read each other's memory")));
}

}  // namespace
}  // namespace tessera::internal::testing
