#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include <torch/torch.h>

#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/delayed_group.h"
#include "tessera/tests/support/held_operator.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"
#include "tessera/tests/zero/engine/engine_fixture.h"

// Under zero1 and zero2, if ranks have their own copies, the all-gather of updated parameters
// continues while the next forward begins.

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

class ParameterAllGatherTest : public ::testing::TestWithParam<Strategy> {
 protected:
  /// A rank after its first step, whose collectives are late.
  struct Rank : OddRank {
    Rank(std::shared_ptr<ProcessGroup> group, Strategy strategy)
        : OddRank(std::make_shared<DelayedGroup>(
                      std::move(group),
                      DelayOptions{.seed = 11, .longest = std::chrono::milliseconds(20)}),
                  small_options_of(apart(configuration_of(strategy)))) {
      train(0);
    }
  };

  static void on_ranks(const std::function<void(Rank&)>& body) {
    run_ranks(3, [&](std::shared_ptr<ProcessGroup> world) {
      Rank rank(std::move(world), GetParam());
      body(rank);
    });
  }

  /// The parameters after one step.
  static std::map<std::string, at::Tensor> expected() {
    std::map<std::string, at::Tensor> parameters;
    run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& world) {
      const bool is_first = world->rank() == 0;
      const auto net = make_net();
      const auto engine =
          parallelize(net, adamw(), small_options_of(configuration_of(Strategy::kDdp)), world);
      loss_on(*net, world->rank(), 0).backward();
      engine->step();
      if (is_first) parameters = copy_parameters(*net);
    });
    return parameters;
  }
};

/// Reads every parameter's first element through its address. Returns the first error, or "".
std::string read_raw(const Net& net) {
  try {
    for (const at::Tensor& parameter : net.parameters()) {
      if (parameter.numel() > 0) static_cast<void>(*parameter.const_data_ptr<double>());
    }
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST_P(ParameterAllGatherTest, GoesOnBehindTheStepAndRawReadsSayHowToWait) {
  on_ranks([](Rank& rank) {
    EXPECT_THAT(read_raw(*rank.net), HasSubstr("are still on their way from other ranks"));
    EXPECT_THAT(read_raw(*rank.net), HasSubstr("call engine->wait()"));
    rank.engine->wait();
    EXPECT_EQ(read_raw(*rank.net), "");
  });
}

TEST_P(ParameterAllGatherTest, IsWaitedForByOperators) {
  const auto values = expected();
  on_ranks([&](Rank& rank) {
    EXPECT_EQ(bit_differences(copy_parameters(*rank.net), values), "");
    EXPECT_EQ(read_raw(*rank.net), "") << "every unit was touched, so all have arrived";
  });
}

TEST_P(ParameterAllGatherTest, IsWaitedForByTheEnd) {
  const auto values = expected();
  on_ranks([&](Rank& rank) {
    rank.engine.reset();
    EXPECT_EQ(read_raw(*rank.net), "");
    EXPECT_EQ(bit_differences(copy_parameters(*rank.net), values), "");
  });
}

TEST_P(ParameterAllGatherTest, IsWaitedForByWhateverReadsOrWritesParameters) {
  on_ranks([](Rank& rank) {
    const uint64_t before = parameter_hash(*rank.engine);
    EXPECT_EQ(read_raw(*rank.net), "");
    loss_on(*rank.net, rank.world->rank(), 1).backward();
    rank.engine->step();
    rank.engine->modify_parameters(0, [] {});
    EXPECT_EQ(read_raw(*rank.net), "");
    EXPECT_NE(parameter_hash(*rank.engine), before);
    loss_on(*rank.net, rank.world->rank(), 2).backward();
    rank.engine->step();
    const auto whole = rank.engine->full_parameters();
    EXPECT_EQ(read_raw(*rank.net), "");
  });
}

/// An operator of another thread that waited for its parameter may still run when the all-gather
/// and the engine end.
TEST_P(ParameterAllGatherTest, MayEndWhileAnOperatorReads) {
  const auto values = expected();
  on_ranks([&](Rank& rank) {
    const auto& [name, value] = *values.begin();
    HeldOperator first(rank.net->named_parameters()[name]);
    rank.engine->wait();
    EXPECT_TRUE(at::equal(first.look(), value));
    EXPECT_TRUE(at::equal(first.end(), value));

    loss_on(*rank.net, rank.world->rank(), 1).backward();
    rank.engine->step();
    HeldOperator second(rank.net->named_parameters()[name]);
    const at::Tensor value_now = second.look();
    EXPECT_FALSE(at::equal(value_now, value));
    rank.engine.reset();
    EXPECT_TRUE(at::equal(second.look(), value_now));
    EXPECT_TRUE(at::equal(second.end(), value_now));
    EXPECT_EQ(read_raw(*rank.net), "");
  });
}

/// A write made while the values are being gathered is noticed like any other.
TEST_P(ParameterAllGatherTest, DoesNotHideWrites) {
  const std::vector<std::string> errors =
      run_ranks_expecting_errors(3, [](std::shared_ptr<ProcessGroup> world) {
        Rank rank(std::move(world), GetParam());
        {
          const torch::NoGradGuard no_grad;
          rank.net->parameters()[0].mul_(2.0);
        }
        loss_on(*rank.net, rank.world->rank(), 1).backward();
        rank.engine->step();
      });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("was written outside engine->modify_parameters()"));
  }
}

/// The control of the first test: with lanes in the calls there is nothing to wait for.
TEST_P(ParameterAllGatherTest, EndsInTheStepWhereCollectivesRunInTheCalls) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    const auto net = make_net();
    const auto engine =
        parallelize(net, adamw(), small_options_of(apart(configuration_of(GetParam()))), world);
    loss_on(*net, world->rank(), 0).backward();
    engine->step();
    EXPECT_EQ(read_raw(*net), "");
  });
}

INSTANTIATE_TEST_SUITE_P(, ParameterAllGatherTest,
                         ::testing::Values(Strategy::kZero1, Strategy::kZero2),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace tessera::internal::testing
