// User-defined optimizers under engines: equal bits under every configuration, state that moves,
// memory as predicted, and options that all ranks refuse.
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/checkpoint.h"
#include "tessera/elementwise.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/own_optimizer.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/zero/state/saved_rank.h"
#include "tessera/torch_elementwise.h"

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

bool is_vector_of(std::string_view, const at::Tensor& parameter) { return parameter.dim() < 2; }

OwnOptions own_options() {
  OwnOptions options(0.02);
  options.uses_maxima = true;
  return options;
}

/// A user's optimizer, one of LibTorch's that runs the same way, and one of Tessera's.
OptimizerPlan three_ways() {
  return {elementwise<Own<Belief>>(own_options()),
          {{"vectors", &is_vector_of, torch::optim::SGDOptions(0.1).momentum(0.9)},
           {"odd", [](std::string_view, const at::Tensor& of) { return of.size(0) % 2 == 1; },
            elementwise<torch::optim::AdamW>(torch::optim::AdamWOptions(0.02))}}};
}

/// A user's optimizer alone, with a state in another dtype than the masters.
OptimizerPlan narrow_state() { return elementwise<Own<NarrowMomentum>>(own_options()); }

struct OwnRank : EngineRank<Net> {
  OwnRank(std::shared_ptr<ProcessGroup> group, const OptimizerPlan& plan, const Options& options,
          uint64_t seed)
      : EngineRank(std::move(group), prepare(subject("OddMlp").make(), at::kFloat, seed), plan,
                   options),
        dtype(options.precision.parameters.value_or(at::kFloat)) {}
  OwnRank(std::shared_ptr<ProcessGroup> group, const OptimizerPlan& plan,
          const Configuration& configuration, uint64_t seed = 3)
      : OwnRank(std::move(group), plan, small_options_of(configuration), seed) {}
  at::Tensor loss(int step) const override {
    const Schedule schedule{.name = ""};
    const Moment moment{.step = step, .rank = world->rank()};
    const Batch batch = batch_of(subject("OddMlp"), dtype, schedule, moment, 0);
    return loss_of(*net, batch, moment, schedule);
  }
  void train(int begin, int end) const {
    for (int step = begin; step < end; ++step) EngineRank::train(step);
  }

  at::ScalarType dtype;
};

class OwnOptimizer : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }

  /// The state after steps [begin, end), starting from `start` unless it is empty.
  States trained(const OptimizerPlan& plan, const Configuration& configuration, int begin, int end,
                 const States& start, StateScope scope) const {
    return on_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const auto rank = static_cast<size_t>(group->rank());
      const OwnRank run(std::move(group), plan, configuration, start.empty() ? 3 : 77);
      if (!start.empty()) run.engine->load_state_dict(start[rank]);
      run.train(begin, end);
      EXPECT_EQ(run.engine->memory().now()[MemoryClass::kOptimizer],
                predicted_memory(*run.engine, 1)[MemoryClass::kOptimizer])
          << configuration;
      return run.engine->state_dict(scope);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(World, OwnOptimizer, ::testing::ValuesIn(spanning_worlds()));

TEST_P(OwnOptimizer, HasTheSameBitsUnderEveryConfigurationAndMovesBetweenThem) {
  const std::vector<Configuration> configurations = configurations_at(world());
  for (const OptimizerPlan& plan : {three_ways(), narrow_state()}) {
    const StateDict expected =
        trained(plan, configurations[0], 0, 4, {}, StateScope::kEveryRank).back();
    for (size_t i = 0; i < configurations.size(); ++i) {
      const Configuration& to = configurations[(i + 1) % configurations.size()];
      const States half = trained(plan, configurations[i], 0, 2, {}, StateScope::kSharded);
      const States all = trained(plan, to, 2, 4, half, StateScope::kEveryRank);
      EXPECT_EQ(bit_differences(all.back(), expected), "") << configurations[i] << " to " << to;
    }
  }
}

TEST_P(OwnOptimizer, MovesBetweenWorldsThroughACheckpoint) {
  const OptimizerPlan plan = three_ways();
  const TemporaryDirectory directory;
  StateDict expected;
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const OwnRank run(std::move(group), plan, configuration_of(Strategy::kZero3));
    run.train(0, 2);
    save_checkpoint(*run.engine, directory.path());
    StateDict state = run.engine->state_dict(StateScope::kOneRank);
    if (run.world->rank() == 0) expected = std::move(state);
  });
  EXPECT_TRUE(expected.entries.contains("optimizer.defaults.algorithm.AdaBelief"));
  run_ranks(world() % 4 + 1, [&](std::shared_ptr<ProcessGroup> group) {
    const OwnRank run(std::move(group), plan, configuration_of(Strategy::kZero1), 77);
    run.train(0, 1);
    ASSERT_TRUE(load_checkpoint(*run.engine, directory.path()).has_value());
    EXPECT_EQ(bit_differences(run.engine->state_dict(StateScope::kEveryRank), expected), "");
    run.train(2, 3);
  });
}

TEST_P(OwnOptimizer, RefusesTheStateOfAnotherAlgorithm) {
  const Configuration configuration = configuration_of(Strategy::kZero2);
  const States belief = trained(elementwise<Own<Belief>>(OwnOptions()), configuration, 0, 1, {},
                                StateScope::kSharded);
  const OptimizerPlan narrow = narrow_state();
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const auto rank = static_cast<size_t>(group->rank());
    const OwnRank run(std::move(group), narrow, configuration);
    EXPECT_THAT(message_of([&] { run.engine->load_state_dict(belief[rank]); }),
                HasSubstr("'optimizer.defaults.algorithm.AdaBelief': got an entry that this run "
                          "does not have; another algorithm saved the state"));
    run.train(0, 1);
  });
}

/// LibTorch's AdamW and Tessera's have states of the same names.
TEST_P(OwnOptimizer, ContinuesWhatTesserasOwnBegan) {
  const torch::optim::AdamWOptions adamw(0.02);
  const Configuration configuration = configuration_of(Strategy::kZero3);
  const States half = trained(adamw, configuration, 0, 2, {}, StateScope::kSharded);
  const OptimizerPlan by_torch = elementwise<torch::optim::AdamW>(adamw);
  const States all = trained(by_torch, configuration, 2, 4, half, StateScope::kEveryRank);
  const States expected = trained(adamw, configuration, 0, 4, {}, StateScope::kEveryRank);
  for (const auto& [name, entry] : expected.back().entries) {
    const auto& got = all.back().entries.at(name);
    EXPECT_TRUE(torch::allclose(got.tensor(), entry.tensor(), 1e-5, 1e-6)) << name;
  }
}

/// Before the first update each can continue from the other's state.
TEST_P(OwnOptimizer, SavesStatesBeforeTheFirstUpdateAsTesserasOwn) {
  const auto adagrad = torch::optim::AdagradOptions(0.1).initial_accumulator_value(0.25);
  const OptimizerPlan by_torch = elementwise<torch::optim::Adagrad>(adagrad);
  const Configuration configuration = configuration_of(Strategy::kZero2);
  const States got = trained(by_torch, configuration, 0, 0, {}, StateScope::kEveryRank);
  const States expected = trained(adagrad, configuration, 0, 0, {}, StateScope::kEveryRank);
  EXPECT_EQ(bit_differences(got.back(), expected.back()), "");
}

/// Updates in backward, an average, and masters: the same bits as ddp with the same options.
TEST(OwnOptimizerOptions, WorkBesideTheOptionsOfOthers) {
  Configuration in_backward;
  in_backward.optimizer_in_backward = true;
  Configuration averaged;
  averaged.average = WeightAverage{.decay = 0.9};
  Configuration narrow;
  narrow.precision.parameters = at::kBFloat16;
  Configuration all = narrow;
  all.average = WeightAverage{};
  const OptimizerPlan plan = three_ways();
  const auto end_of = [&plan](const Configuration& configuration) {
    return on_ranks(2,
                    [&](std::shared_ptr<ProcessGroup> group) {
                      const OwnRank run(std::move(group), plan, configuration);
                      run.train(0, 3);
                      return run.engine->state_dict(StateScope::kEveryRank);
                    })
        .front();
  };
  for (Configuration configuration : {in_backward, averaged, narrow, all}) {
    configuration.strategy = Strategy::kZero3;
    const StateDict got = end_of(configuration);
    configuration.strategy = Strategy::kDdp;
    configuration.optimizer_in_backward = false;
    EXPECT_EQ(bit_differences(got, end_of(configuration)), "");
  }
}

TEST(OwnOptimizerOptions, FollowSchedulersAndAreComparedBetweenRanks) {
  const OptimizerPlan plan = elementwise<Own<Belief>>(OwnOptions(0.5));
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
    const OwnRank run(std::move(group), plan, configuration_of(Strategy::kZero2));
    torch::optim::StepLR schedule(run.engine->optimizer(), /*step_size=*/1, /*gamma=*/0.5);
    run.train(0, 1);
    for (int i = 0; i < 2; ++i) schedule.step();  // the first one has no effect
    auto& options = static_cast<OwnOptions&>(run.engine->optimizer().param_groups()[0].options());
    EXPECT_EQ(options.lr, 0.25);
    run.train(1, 2);
    EXPECT_EQ(run.engine->state_dict(StateScope::kEveryRank)
                  .entries.at("optimizer.defaults.lr")
                  .tensor()
                  .item<double>(),
              0.25);
    options.beta = run.world->rank() == 1 ? 0.5 : 0.9;
    run.backward(2);
    EXPECT_THAT(message_of([&] { run.engine->step(); }), HasSubstr("defaults: beta"));
    options.beta = 0.5;
    options.uses_maxima = true;
    EXPECT_THAT(message_of([&] { run.engine->step(); }),
                HasSubstr("defaults: got options that need the state 'most', expected ones that do "
                          "not"));
    options.uses_maxima = false;
    run.engine->step();
  });
}

TEST(OwnOptimizerOptions, AreRefusedOnAllRanksWhereTheProbeFindsThemAndWhereRanksDiffer) {
  const OptimizerPlan by_norm = elementwise<Own<NormOfParameter>>(OwnOptions());
  const OptimizerPlan builtin = torch::optim::AdamWOptions(0.02);
  const OptimizerPlan by_torch = elementwise<torch::optim::AdamW>(torch::optim::AdamWOptions(0.02));
  run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
    const Configuration zero3 = configuration_of(Strategy::kZero3);
    EXPECT_THAT(message_of([&] { OwnRank(group, by_norm, zero3); }),
                HasSubstr("[optim] defaults: NormOfParameter: got an update of an element that "
                          "depends on others of its parameter"));
    EXPECT_THAT(message_of([&] { OwnRank(group, group->rank() == 0 ? builtin : by_torch, zero3); }),
                HasSubstr("(elementwise: exp_avg exp_avg_sq max_exp_avg_sq)"));
  });
}

/// SGD that throws in its fifth update, which the probe does not reach.
struct GivesUp {
  static constexpr const char* kName = "GivesUp";
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState& state,
                     const OwnOptions& options) {
    TORCH_CHECK(state.count < 5, "has given up");
    parameter.add_(gradient, -options.lr);
  }
};

TEST(OwnOptimizerOptions, AnExceptionInAStepFailsTheEngineOnAllRanks) {
  const OptimizerPlan plan = elementwise<Own<GivesUp>>(OwnOptions());
  run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
    const OwnRank run(std::move(group), plan, configuration_of(Strategy::kZero2));
    run.train(0, 4);
    run.backward(4);
    EXPECT_THAT(message_of([&] { run.engine->step(); }), HasSubstr("has given up"));
    EXPECT_THAT(message_of([&] { run.engine->step(); }), HasSubstr("has given up"));
  });
}

/// The fault that the probe prevents.
TEST(OwnOptimizerNegativeControl, WhatIsNotElementwiseDependsOnTheStrategy) {
  const OptimizerPlan plan =
      elementwise<Own<NormOfParameter>>(OwnOptions(), ElementwiseProbe::kSkip);
  std::vector<StateDict> ends;
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
    ends.push_back(on_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
                     const OwnRank run(std::move(group), plan, configuration_of(strategy));
                     run.train(0, 3);
                     return run.engine->state_dict(StateScope::kEveryRank);
                   }).front());
  }
  EXPECT_NE(bit_differences(ends[1], ends[0]), "");
}

}  // namespace
}  // namespace tessera::internal::testing
