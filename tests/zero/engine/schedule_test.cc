#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/engine_rank.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

// Engine::set_schedule(): learning rates as a function of the number of updates.

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// OddMlp has parameters in two groups of make_plan().
double rate_of(int64_t step, std::string_view group) {
  return (group == "biases" ? 0.03 : 0.02) / static_cast<double>(1 + step);
}

/// A rank that trains with `micro_steps` backward passes per step.
struct ScheduledRank : EngineRank<Net> {
  ScheduledRank(std::shared_ptr<ProcessGroup> group, const Options& options, uint64_t seed = 3)
      : ScheduledRank(std::move(group), prepare(subject("OddMlp").make(), at::kFloat, seed),
                      options) {}

  at::Tensor loss(int step) const override { return micro_loss(step, 0); }
  at::Tensor micro_loss(int step, int micro) const {
    const Schedule schedule{.name = "", .micro_steps = micro_steps};
    const Moment moment{.step = step, .rank = world->rank()};
    return engine->scale(loss_of(
        *net, batch_of(subject("OddMlp"), at::kFloat, schedule, moment, micro), moment, schedule));
  }
  void train(int begin, int end) const {
    for (int step = begin; step < end; ++step) {
      for (int micro = 0; micro < micro_steps; ++micro) micro_loss(step, micro).backward();
      engine->step();
    }
  }
  int micro_steps = 1;

 private:
  ScheduledRank(std::shared_ptr<ProcessGroup> group, const std::shared_ptr<Net>& model,
                const Options& options)
      : EngineRank(std::move(group), model, make_plan(*model), options) {}
};

/// The hash of the parameters after `body`; all ranks have the same.
uint64_t hash_on(int world, const Options& options,
                 const std::function<void(ScheduledRank&)>& body) {
  uint64_t hash = 0;
  run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
    const bool is_first = group->rank() == 0;
    ScheduledRank rank(std::move(group), options);
    body(rank);
    const uint64_t own = parameter_hash(*rank.engine);
    if (is_first) hash = own;
  });
  return hash;
}

/// The hash if rates are set by hand before each step.
uint64_t expected_hash(int world, int micro_steps, int steps) {
  return hash_on(world, {}, [&](ScheduledRank& rank) {
    rank.micro_steps = micro_steps;
    for (int step = 0; step < steps; ++step) {
      auto& groups = rank.engine->optimizer().param_groups();
      const std::vector<const char*> names = {"defaults", "biases"};
      ASSERT_EQ(groups.size(), names.size());
      for (size_t i = 0; i < groups.size(); ++i)
        groups[i].options().set_lr(rate_of(step, names[i]));
      rank.train(step, step + 1);
    }
  });
}

class RateSchedule : public ::testing::TestWithParam<int> {};

TEST_P(RateSchedule, GivesTheSameBitsUnderEveryConfiguration) {
  const int world = GetParam();
  for (const int micro_steps : {1, 2}) {
    const uint64_t expected = expected_hash(world, micro_steps, 4);
    for (const Configuration& configuration : spanning_configurations(world)) {
      if (!configuration.keeps_bits()) continue;
      const uint64_t got =
          hash_on(world, small_options_of(configuration), [&](ScheduledRank& rank) {
            rank.micro_steps = micro_steps;
            rank.engine->set_schedule(&rate_of);
            rank.train(0, 4);
          });
      EXPECT_EQ(got, expected) << configuration << ", " << micro_steps << " micro-steps";
    }
  }
}

TEST_P(RateSchedule, GivesTheSameBitsWhereBackwardUpdates) {
  const int world = GetParam();
  const uint64_t expected = expected_hash(world, 1, 4);
  for (const Strategy strategy : {Strategy::kZero2, Strategy::kZero3}) {
    Options options = small_options_of(configuration_of(strategy));
    options.optimizer_in_backward = true;
    const auto body = [](ScheduledRank& rank) {
      rank.engine->set_schedule(&rate_of);
      rank.train(0, 4);
    };
    EXPECT_EQ(hash_on(world, options, body), expected) << to_string(strategy);
  }
}

// A state taken halfway and loaded elsewhere: the schedule continues where the run was.
TEST_P(RateSchedule, GoesOnFromALoadedState) {
  const int world = GetParam();
  const uint64_t expected = expected_hash(world, 1, 5);
  for (const Configuration& configuration : named_configurations()) {
    const uint64_t got = hash_on(world, small_options_of(configuration), [&](ScheduledRank& rank) {
      StateDict state;
      {
        ScheduledRank first(rank.world, small_options_of(configuration_of(Strategy::kZero3)));
        first.engine->set_schedule(&rate_of);
        first.train(0, 3);
        state = first.engine->state_dict(StateScope::kSharded);
      }
      rank.engine->set_schedule(&rate_of);
      rank.train(0, 1);  // sets a rate, which the state replaces
      rank.engine->load_state_dict(state);
      rank.train(3, 5);
    });
    EXPECT_EQ(got, expected) << configuration;
  }
}

TEST_P(RateSchedule, DoesNotCountSkippedSteps) {
  const int world = GetParam();
  const uint64_t expected = expected_hash(world, 1, 3);
  for (const Configuration& configuration : named_configurations()) {
    Options options = small_options_of(configuration);
    options.loss_scale = LossScale{.initial = 8.0};
    const uint64_t got = hash_on(world, options, [](ScheduledRank& rank) {
      std::vector<int64_t> asked;
      rank.engine->set_schedule([&asked](int64_t step, std::string_view group) {
        if (group == "defaults") asked.push_back(step);
        return rate_of(step, group);
      });
      rank.train(0, 1);
      (rank.loss(1) * std::numeric_limits<float>::infinity()).backward();
      EXPECT_FALSE(rank.engine->step().committed);
      rank.train(1, 3);
      EXPECT_THAT(asked, ElementsAre(0, 1, 1, 2));
    });
    EXPECT_EQ(got, expected) << configuration;
  }
}

TEST_P(RateSchedule, TakesOneRateForAllGroupsAndEnds) {
  run_ranks(GetParam(), [](std::shared_ptr<ProcessGroup> world) {
    const ScheduledRank rank(std::move(world), {});
    const auto rates = [&] {
      std::vector<double> all;
      for (const auto& group : rank.engine->optimizer().param_groups()) {
        all.push_back(group.options().get_lr());
      }
      return all;
    };
    rank.engine->set_schedule([](int64_t step) { return step == 0 ? 0.5 : 0.25; });
    rank.train(0, 1);
    EXPECT_THAT(rates(), Each(0.5));
    rank.train(1, 2);
    EXPECT_THAT(rates(), Each(0.25));
    rank.engine->set_schedule({});
    rank.engine->optimizer().param_groups()[1].options().set_lr(0.125);
    rank.train(2, 3);
    EXPECT_THAT(rates(), ElementsAre(0.25, 0.125));
  });
}

class RateScheduleMisuse : public ::testing::TestWithParam<Configuration> {
 protected:
  /// Returns each of three ranks' error in its second step, after which a good schedule continues.
  static std::vector<std::string> refusals(const std::function<void(ScheduledRank&)>& begin,
                                           const std::function<void(ScheduledRank&)>& after_first,
                                           bool goes_back = true) {
    std::vector<std::string> messages(3);
    run_ranks(3, [&](std::shared_ptr<ProcessGroup> world) {
      const auto number = static_cast<size_t>(world->rank());
      Options options = small_options_of(GetParam());
      ScheduledRank rank(std::move(world), options);
      begin(rank);
      rank.train(0, 1);
      const uint64_t before = parameter_hash(*rank.engine);
      const auto rate = [&] {
        return rank.engine->optimizer().param_groups()[0].options().get_lr();
      };
      const double rate_before = rate();
      after_first(rank);
      messages[number] = message_of([&] { rank.train(1, 2); });
      rank.engine->zero_grad();
      EXPECT_EQ(parameter_hash(*rank.engine), before);
      EXPECT_EQ(rate() == rate_before, goes_back) << rate();
      rank.engine->set_schedule([](int64_t) { return 0.1; });
      rank.train(1, 3);
    });
    return messages;
  }
  static void good(ScheduledRank& rank) { rank.engine->set_schedule(&rate_of); }
  static void nothing(ScheduledRank&) {}
};

TEST_P(RateScheduleMisuse, AnotherScheduler) {
  const auto messages = refusals(
      &good,
      [](ScheduledRank& rank) {
        torch::optim::StepLR other(rank.engine->optimizer(), 1, 0.5);
        for (int step = 0; step < 2; ++step) other.step();  // the first has no effect
      },
      /*goes_back=*/false);
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("[optim] defaults: lr: got 0.01 from elsewhere"),
                                   HasSubstr("expected 0.02, which the schedule has set"))));
}

TEST_P(RateScheduleMisuse, ThrowsOnOneRank) {
  const auto messages = refusals(&nothing, [](ScheduledRank& rank) {
    const bool throws = rank.world->rank() == 1;
    rank.engine->set_schedule([throws](int64_t step) {
      if (throws) throw std::runtime_error("no rate for step " + std::to_string(step));
      return 0.1;
    });
  });
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("rank 1"), HasSubstr("no rate for step 1"))));
}

TEST_P(RateScheduleMisuse, RatesThatDiffer) {
  const auto messages = refusals(&nothing, [](ScheduledRank& rank) {
    const double own = rank.world->rank() == 2 ? 0.2 : 0.1;
    rank.engine->set_schedule([own](int64_t) { return own; });
  });
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("rank 2"), HasSubstr("defaults: lr"))));
}

TEST_P(RateScheduleMisuse, RatesOutOfRange) {
  const auto messages = refusals(&nothing, [](ScheduledRank& rank) {
    rank.engine->set_schedule([](int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
  });
  EXPECT_THAT(messages, Each(HasSubstr("[optim] defaults: lr: got nan")));
}

std::vector<Configuration> misused() {
  std::vector<Configuration> all = named_configurations();
  all.push_back(configuration_of(Strategy::kZero3));
  all.back().name = "zero3_early";
  all.back().optimizer_in_backward = true;
  return all;
}

INSTANTIATE_TEST_SUITE_P(, RateSchedule, ::testing::ValuesIn(spanning_worlds()),
                         [](const auto& info) { return "World" + std::to_string(info.param); });
INSTANTIATE_TEST_SUITE_P(, RateScheduleMisuse, ::testing::ValuesIn(misused()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::internal::testing
