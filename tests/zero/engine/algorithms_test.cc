// Every algorithm under every configuration: equal bits, state that moves, memory as predicted.
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/lamb_options.h"
#include "tessera/lion_options.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/muon_plan.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/zero/state/saved_rank.h"

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;
using namespace torch::optim;

bool is_bias(std::string_view name) { return name.ends_with("bias"); }
bool is_matrix(std::string_view, const at::Tensor& parameter) { return parameter.dim() == 2; }

struct NamedPlan {
  std::string name;
  OptimizerPlan plan;
};

/// One plan of each kind, and groups with other states than the defaults.
std::vector<NamedPlan> plans() {
  return {
      {"AdamW amsgrad", AdamWOptions(0.02).amsgrad(true)},
      {"Adam", AdamOptions(0.02).weight_decay(0.1)},
      {"Adam amsgrad", {AdamOptions(0.02), {{"bias", &is_bias, AdamOptions(0.1).amsgrad(true)}}}},
      {"SGD", SGDOptions(0.1)},
      {"SGD momentum", {SGDOptions(0.1), {{"bias", &is_bias, SGDOptions(0.1).momentum(0.9)}}}},
      {"Lion", LionOptions(0.01).weight_decay(0.2)},
      {"Adagrad", AdagradOptions(0.1).initial_accumulator_value(0.25).lr_decay(0.1)},
      {"RMSprop", RMSpropOptions(0.01)},
      {"AdamW, SGD for biases", {AdamWOptions(0.02), {{"bias", &is_bias, SGDOptions(0.1)}}}},
      {"Lion, Adagrad for biases, SGD for matrices",
       {LionOptions(0.01),
        {{"bias", &is_bias, AdagradOptions(0.1).initial_accumulator_value(0.25)},
         {"matrices", &is_matrix, SGDOptions(0.1).momentum(0.9)}}}},
      {"Muon, AdamW for the rest", muon_and(AdamWOptions(0.02), MuonOptions(0.02))},
      {"LAMB", LambOptions(0.02)},
      {"Muon, LAMB for the rest", muon_and(LambOptions(0.02), MuonOptions(0.02))},
      {"RMSprop all", RMSpropOptions(0.01).momentum(0.8).centered(true).weight_decay(0.1)}};
}

struct AlgorithmRank : EngineRank<Net> {
  AlgorithmRank(std::shared_ptr<ProcessGroup> group, const OptimizerPlan& plan,
                const Configuration& configuration, uint64_t seed)
      : EngineRank(std::move(group), make_net(seed), plan, small_options_of(configuration)) {}
  at::Tensor loss(int step) const override { return loss_on(*net, world->rank(), step); }
  void train(int begin, int end) const {
    for (int step = begin; step < end; ++step) EngineRank::train(step);
  }
};

class EveryAlgorithm : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }

  /// The state after steps [begin, end), starting from `start` unless it is empty.
  States trained(const OptimizerPlan& plan, const Configuration& configuration, int begin, int end,
                 const States& start, StateScope scope) const {
    return on_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const auto rank = static_cast<size_t>(group->rank());
      const AlgorithmRank run(std::move(group), plan, configuration, start.empty() ? 3 : 77);
      if (!start.empty()) run.engine->load_state_dict(start[rank]);
      run.train(begin, end);
      const MemoryBytes predicted = predicted_memory(*run.engine, 1);
      EXPECT_EQ(run.engine->memory().now()[MemoryClass::kOptimizer],
                predicted[MemoryClass::kOptimizer])
          << configuration;
      return run.engine->state_dict(scope);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(World, EveryAlgorithm, ::testing::ValuesIn(spanning_worlds()));

TEST_P(EveryAlgorithm, HasTheSameBitsUnderEveryConfigurationAndMovesBetweenThem) {
  const std::vector<Configuration> configurations = configurations_at(world());
  for (const NamedPlan& each : plans()) {
    SCOPED_TRACE(each.name);
    const StateDict expected =
        trained(each.plan, configurations[0], 0, 4, {}, StateScope::kEveryRank).back();
    for (size_t i = 0; i < configurations.size(); ++i) {
      const Configuration& to = configurations[(i + 1) % configurations.size()];
      const States half = trained(each.plan, configurations[i], 0, 2, {}, StateScope::kSharded);
      const States all = trained(each.plan, to, 2, 4, half, StateScope::kEveryRank);
      EXPECT_EQ(bit_differences(all.back(), expected), "") << configurations[i] << " to " << to;
    }
  }
}

TEST_P(EveryAlgorithm, RefusesTheStateOfAnotherOne) {
  const Configuration configuration = configuration_of(Strategy::kZero2);
  const States adam = trained(AdamOptions(0.02), configuration, 0, 1, {}, StateScope::kSharded);
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const auto rank = static_cast<size_t>(group->rank());
    const AlgorithmRank run(std::move(group), LionOptions(0.01), configuration, 3);
    EXPECT_THAT([&] { run.engine->load_state_dict(adam[rank]); },
                ThrowsMessage<c10::Error>(HasSubstr("exp_avg_sq")));
    run.train(0, 1);
  });
}

TEST_P(EveryAlgorithm, RefusesTheStateOfAnotherOneThatHasTheSameEntries) {
  const Configuration configuration = configuration_of(Strategy::kZero1);
  const OptimizerPlan by_bias(AdamWOptions(0.02), {{"bias", &is_bias, AdamOptions(0.02)}});
  const States state = trained(by_bias, configuration, 0, 1, {}, StateScope::kSharded);
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const auto rank = static_cast<size_t>(group->rank());
    const OptimizerPlan all_adamw(AdamWOptions(0.02), {{"bias", &is_bias, AdamWOptions(0.02)}});
    const AlgorithmRank run(std::move(group), all_adamw, configuration, 3);
    EXPECT_THAT([&] { run.engine->load_state_dict(state[rank]); },
                ThrowsMessage<c10::Error>(
                    AllOf(HasSubstr("'optimizer.bias.algorithm.Adam': got an entry that this run "
                                    "does not have; another algorithm saved the state: give its "
                                    "options to parallelize, for the same group"),
                          Not(HasSubstr("defaults")))));
    // A state without its algorithm's name comes from an earlier version.
    StateDict silent = state[rank];
    std::erase_if(silent.entries, [](const auto& entry) {
      return entry.first.find(".algorithm.") != std::string::npos;
    });
    run.engine->load_state_dict(silent);
    EXPECT_EQ(run.engine->steps(), 1);
    run.train(0, 1);
  });
}

TEST(EveryAlgorithmNegativeControl, PlansDifferFromEachOther) {
  const Configuration configuration = configuration_of(Strategy::kZero3);
  std::vector<at::Tensor> ends;
  for (const NamedPlan& each : plans()) {
    run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
      const bool is_first = group->rank() == 0;
      const AlgorithmRank run(std::move(group), each.plan, configuration, 3);
      run.train(0, 3);
      const auto whole = run.engine->full_parameters();
      if (is_first) ends.push_back(run.net->parameters()[0].detach().clone());
    });
    for (size_t i = 0; i + 1 < ends.size(); ++i) {
      EXPECT_FALSE(ends[i].equal(ends.back())) << plans()[i].name << " and " << each.name;
    }
  }
}

}  // namespace
}  // namespace tessera::internal::testing
