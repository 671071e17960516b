// User-defined optimizers over whole parameters: memory, traffic, states of any size that move, and
// refusals on all ranks. Bits: tests/equivalence/whole_tensor_equivalence_test.cc.
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/checkpoint.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/factored.h"
#include "tessera/tests/support/group_without_windows.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/own_optimizer.h"
#include "tessera/tests/support/recording_group.h"
#include "tessera/tests/support/same_bits.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/zero/state/saved_rank.h"
#include "tessera/whole_tensor.h"

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

OptimizerPlan factored() { return whole_tensor<Factored>(FactoredOptions()); }

/// Factored for matrices, AdamW for the rest.
OptimizerPlan factored_and_adamw() {
  return {torch::optim::AdamWOptions(0.02),
          {{"matrices", [](std::string_view, const at::Tensor& of) { return of.dim() == 2; },
            whole_tensor<Factored>(FactoredOptions())}}};
}

/// Has no states. Throws in its fifth update, which the probe does not reach.
struct GivesUpWhole {
  static constexpr const char* kName = "GivesUp";
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState& state,
                     const OwnOptions& options) {
    TORCH_CHECK(state.count < 5, "has given up");
    parameter.add_(gradient, -options.lr);
  }
};

struct WholeRank : EngineRank<Net> {
  WholeRank(std::shared_ptr<ProcessGroup> group, const OptimizerPlan& plan,
            const std::string& model, const Options& options, uint64_t seed = 3)
      : EngineRank(std::move(group), prepare(subject(model).make(), at::kFloat, seed), plan,
                   options),
        of(subject(model)),
        dtype(options.precision.parameters.value_or(at::kFloat)) {}
  WholeRank(std::shared_ptr<ProcessGroup> group, const OptimizerPlan& plan,
            const Configuration& configuration, uint64_t seed = 3)
      : WholeRank(std::move(group), plan, "OddMlp", small_options_of(configuration), seed) {}
  at::Tensor loss(int step) const override {
    const Schedule schedule{.name = ""};
    const Moment moment{.step = step, .rank = world->rank()};
    return engine->scale(loss_of(*net, batch_of(of, dtype, schedule, moment, 0), moment, schedule));
  }
  void train(int begin, int end) const {
    for (int step = begin; step < end; ++step) EngineRank::train(step);
  }

  const Subject& of;
  at::ScalarType dtype;
};

class WholeTensorEngine : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }

  /// The state after steps [begin, end), starting from `start` unless it is empty.
  States trained(const OptimizerPlan& plan, const Configuration& configuration, int begin, int end,
                 const States& start, StateScope scope) const {
    return on_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const auto rank = static_cast<size_t>(group->rank());
      const WholeRank run(std::move(group), plan, configuration, start.empty() ? 3 : 77);
      if (!start.empty()) run.engine->load_state_dict(start[rank]);
      run.train(begin, end);
      return run.engine->state_dict(scope);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(World, WholeTensorEngine, ::testing::ValuesIn(spanning_worlds()));

TEST_P(WholeTensorEngine, MemoryIsAsPredictedToTheByteAndDoesNotGrow) {
  const OptimizerPlan plan = factored_and_adamw();
  const OptimizerPlan alone = factored();
  for (const char* const model : {"OddMlp", "MixedDtypes"}) {
    for (const bool has_windows : {true, false}) {
      for (const Configuration& configuration : spanning_configurations(world())) {
        const auto reshard = configuration.reshard_after_forward;
        if (!has_windows && (configuration.shares_parameters || reshard.has_value())) continue;
        run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
          if (!has_windows) group = std::make_shared<GroupWithoutWindows>(std::move(group));
          const WholeRank run(std::move(group), has_windows ? plan : alone, model,
                              small_options_of(configuration));
          run.train(0, 1);
          const MemoryBytes before = run.engine->memory().now();
          EXPECT_EQ(before[MemoryClass::kOptimizer],
                    predicted_memory(*run.engine, 1)[MemoryClass::kOptimizer])
              << configuration << " " << model;
          run.train(1, 3);
          EXPECT_EQ(run.engine->memory().now(), before) << configuration << " " << model;
        });
      }
    }
  }
}

/// Layers of 13 x 7, 13 x 13 and 5 x 13 and vectors of 13, 13 and 5; compared with an optimizer
/// without states.
TEST_P(WholeTensorEngine, StatesLieWithTheOwnersOnly) {
  const auto aligned = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  // Momentum, rows, columns, preconditioner, and numbers of 8 and 16 bytes; momentum and squares.
  const auto of_matrix = [&](int64_t rows, int64_t cols) {
    return aligned(rows * cols * 4) + aligned(rows * 4) + aligned(cols * 4) +
           aligned(rows * rows * 4) + 128;
  };
  const auto of_vector = [&](int64_t numel) { return 2 * aligned(numel * 4) + 128; };
  const int64_t all =
      of_matrix(13, 7) + of_matrix(13, 13) + of_matrix(5, 13) + 2 * of_vector(13) + of_vector(5);
  const OptimizerPlan with = factored();
  const OptimizerPlan without = whole_tensor<Own<GivesUpWhole>>(OwnOptions());
  const auto bytes_under = [&](const OptimizerPlan& plan, Strategy strategy) {
    std::vector<int64_t> bytes(static_cast<size_t>(world()));
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const auto rank = static_cast<size_t>(group->rank());
      const WholeRank run(std::move(group), plan, configuration_of(strategy));
      bytes[rank] = run.engine->memory().now()[MemoryClass::kOptimizer];
    });
    return bytes;
  };
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero2}) {
    const std::vector<int64_t> more = bytes_under(with, strategy);
    const std::vector<int64_t> less = bytes_under(without, strategy);
    int64_t sum = 0;
    for (size_t rank = 0; rank < more.size(); ++rank) {
      const int64_t states = more[rank] - less[rank];
      sum += states;
      const bool is_split = strategy == Strategy::kZero2 && world() > 1;
      EXPECT_LE(states, is_split ? all * 2 / 3 : all) << rank;
    }
    EXPECT_EQ(sum, strategy == Strategy::kDdp ? all * world() : all);
  }
}

/// Reads in a step: owners read pieces of gradients and values, other ranks pieces of results.
TEST_P(WholeTensorEngine, TrafficIsThatOfTheFormula) {
  const OptimizerPlan plan = factored_and_adamw();
  for (const Configuration& configuration : named_configurations()) {
    int64_t read = 0;
    int64_t expected = 0;
    std::mutex mutex;
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const auto recording = std::make_shared<Recording>();
      const WholeRank run(std::make_shared<RecordingGroup>(std::move(group), recording), plan,
                          "OddMlp", small_options_of(configuration));
      run.train(0, 2);
      run.backward(2);
      recording->clear();
      run.engine->step();
      const std::lock_guard lock(mutex);
      int64_t barriers = 0;
      for (const RecordedCall& call : recording->calls()) {
        if (call.op == "read") read += call.tensor_bytes;
        if (call.op == "barrier" && call.tag.find("directions") != std::string::npos) ++barriers;
      }
      const bool is_sliced = run.engine->degrees().optimizer > 1;
      EXPECT_EQ(barriers, is_sliced ? 2 : 0) << configuration;
      if (!is_sliced) return;
      // 169 elements go to rank 0, 91 to rank 1, 65 to the rank with the least.
      const std::map<std::string, int> owners = {
          {"layer0.weight", 1}, {"layer1.weight", 0}, {"layer2.weight", world() > 2 ? 2 : 1}};
      for (const PlannedUnit& unit : run.engine->units()) {
        const FlatLayout& layout = unit.layout;
        for (const Segment& segment : layout.segments(layout.part(run.world->rank(), world()))) {
          const auto owner =
              owners.find(run.engine->parameters()[unit.parameters[segment.parameter]].name);
          if (owner == owners.end() || owner->second == run.world->rank()) continue;
          expected += 3 * segment.numel * 4;
        }
      }
    });
    EXPECT_EQ(read, expected) << configuration;
  }
}

TEST_P(WholeTensorEngine, StateMovesFromAnyStrategyToAny) {
  const std::vector<Configuration> configurations = configurations_at(world());
  for (const OptimizerPlan& plan : {factored_and_adamw(), factored()}) {
    const StateDict expected =
        trained(plan, configurations[0], 0, 4, {}, StateScope::kEveryRank).back();
    for (size_t i = 0; i < configurations.size(); ++i) {
      const StateScope scope = i % 2 == 0 ? StateScope::kSharded : StateScope::kOneRank;
      const Configuration& to = configurations[(i + 1) % configurations.size()];
      const States half = trained(plan, configurations[i], 0, 2, {}, scope);
      const States all = trained(plan, to, 2, 4, half, StateScope::kEveryRank);
      EXPECT_EQ(bit_differences(all.back(), expected), "") << configurations[i] << " to " << to;
    }
  }
}

TEST_P(WholeTensorEngine, MovesBetweenWorldsThroughACheckpoint) {
  const OptimizerPlan plan = factored_and_adamw();
  for (const Strategy from : {Strategy::kZero3, Strategy::kDdp}) {
    const TemporaryDirectory directory;
    StateDict expected;
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const WholeRank run(std::move(group), plan, configuration_of(from));
      run.train(0, 2);
      save_checkpoint(*run.engine, directory.path());
      StateDict state = run.engine->state_dict(StateScope::kOneRank);
      if (run.world->rank() == 0) expected = std::move(state);
    });
    const auto sizes_of = [&](const std::string& name) {
      return expected.entries.at("optimizer.layer0.weight." + name).sizes;
    };
    EXPECT_EQ(sizes_of("momentum"), (std::vector<int64_t>{13, 7}));
    EXPECT_EQ(sizes_of("cols"), (std::vector<int64_t>{7}));
    EXPECT_EQ(sizes_of("preconditioner"), (std::vector<int64_t>{13, 13}));
    EXPECT_EQ(sizes_of("largest_norm"), std::vector<int64_t>());
    EXPECT_EQ(expected.entries.at("optimizer.layer0.weight.signs").dtype, at::kLong);
    EXPECT_FALSE(expected.entries.contains("optimizer.layer0.bias.momentum"));
    EXPECT_TRUE(expected.entries.contains("optimizer.matrices.algorithm.Factored"));
    for (const Strategy to : {Strategy::kZero1, Strategy::kDdp}) {
      run_ranks(world() % 4 + 1, [&](std::shared_ptr<ProcessGroup> group) {
        const WholeRank run(std::move(group), plan, configuration_of(to), 77);
        run.train(0, 1);
        ASSERT_TRUE(load_checkpoint(*run.engine, directory.path()).has_value());
        EXPECT_EQ(bit_differences(run.engine->state_dict(StateScope::kEveryRank), expected), "");
        run.train(2, 3);
      });
    }
  }
}

/// An average of the weights, a loss scale, bf16 parameters over masters, all at once.
TEST_P(WholeTensorEngine, AveragesMastersAndLossScalesHaveTheBitsOfDdp) {
  const OptimizerPlan plan = factored_and_adamw();
  const auto states_of = [&](const Configuration& configuration) {
    return on_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      Options options = small_options_of(in_bfloat16(configuration));
      options.average = WeightAverage{.decay = 0.9};
      options.loss_scale = LossScale{.initial = 256, .growth_interval = 2};
      options.max_grad_value = 0.01;
      const WholeRank run(std::move(group), plan, "OddMlp", options);
      run.train(0, 4);
      return run.engine->state_dict(StateScope::kEveryRank);
    });
  };
  const States expected = states_of(configuration_of(Strategy::kDdp));
  EXPECT_TRUE(expected[0].entries.contains("optimizer.layer1.weight.average"));
  for (const Configuration& configuration : configurations_at(world())) {
    EXPECT_EQ(bit_differences(states_of(configuration).back(), expected.back()), "")
        << configuration;
  }
}

/// Its states and its count do not change.
TEST_P(WholeTensorEngine, AMatrixThatNobodyUsedIsLeftAlone) {
  const OptimizerPlan plan = factored();
  for (const Configuration& configuration : configurations_at(world())) {
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const WholeRank run(std::move(group), plan, "UnusedEverywhere",
                          small_options_of(configuration));
      run.train(0, 2);
      const auto after = run.engine->state_dict(StateScope::kEveryRank);
      const auto tensor = [&](const std::string& entry) {
        return after.entries.at("optimizer." + entry).tensor();
      };
      EXPECT_EQ(tensor("unused.weight.step").item<int64_t>(), 0);
      EXPECT_EQ(tensor("unused.weight.preconditioner").abs().sum().item<double>(), 0);
      EXPECT_EQ(tensor("first.weight.step").item<int64_t>(), 2);
      EXPECT_NE(tensor("first.weight.preconditioner").abs().sum().item<double>(), 0);
    });
  }
}

/// States of trained parameters stay; those of frozen ones are returned, and can be loaded again.
TEST_P(WholeTensorEngine, WhatTrainsMayChange) {
  const OptimizerPlan plan = factored();
  const auto is_last = [](std::string_view name) { return name.starts_with("layer2."); };
  const auto all = [](std::string_view) { return true; };
  const auto end_of = [&](Strategy strategy) {
    return on_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const WholeRank run(std::move(group), plan, configuration_of(strategy));
      run.train(0, 2);
      const StateDict before = run.engine->state_dict(StateScope::kEveryRank);
      const StateDict left = run.engine->set_trainable(is_last, FrozenState::kReturned);
      const StateDict stays = run.engine->state_dict(StateScope::kEveryRank);
      const std::string kept = "optimizer.layer2.weight.preconditioner";
      EXPECT_TRUE(have_same_bits(stays.entries.at(kept).tensor(), before.entries.at(kept).tensor()))
          << run.world->rank();
      EXPECT_FALSE(stays.entries.contains("optimizer.layer0.weight.rows"));
      run.train(2, 3);
      run.engine->set_trainable(all);
      run.engine->load_state_dict(left, {.may_lack = all});
      const StateDict again = run.engine->state_dict(StateScope::kEveryRank);
      const std::string back = "optimizer.layer0.weight.rows";
      EXPECT_TRUE(have_same_bits(again.entries.at(back).tensor(), before.entries.at(back).tensor()))
          << run.world->rank();
      run.train(3, 4);
      return run.engine->state_dict(StateScope::kEveryRank);
    });
  };
  const StateDict expected = end_of(Strategy::kDdp).back();
  for (const Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kZero3}) {
    EXPECT_EQ(bit_differences(end_of(strategy).back(), expected), "") << to_string(strategy);
  }
}

/// A rule that depends on the number of parameters.
struct NormOfAllRule {
  static constexpr const char* kName = "Global";
  static void begin(const std::vector<at::Tensor>& parameters, const OwnOptions&) {
    for (const at::Tensor& parameter : parameters) parameter.grad().mul_(1.0 / parameters.size());
  }
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState&,
                     const OwnOptions& options) {
    parameter.add_(gradient, -options.lr);
  }
};

TEST(WholeTensorEngineRefusals, AreNamedOnAllRanks) {
  const OptimizerPlan plan = factored();
  const OptimizerPlan global = whole_tensor<Own<NormOfAllRule>>(OwnOptions());
  FactoredOptions narrow;
  narrow.largest = 4;
  const OptimizerPlan without_preconditioners = whole_tensor<Factored>(narrow);
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
    const Configuration zero2 = configuration_of(Strategy::kZero2);
    EXPECT_THAT(message_of([&] { WholeRank(group, global, zero2); }),
                HasSubstr("Global: got an update that depends on other parameters"));
    Configuration in_backward = zero2;
    in_backward.optimizer_in_backward = true;
    EXPECT_THAT(message_of([&] { WholeRank(group, plan, in_backward); }),
                HasSubstr("optimizer_in_backward: is set beside Factored"));
    const WholeRank run(group, plan, zero2);
    run.backward(0);
    auto& options =
        static_cast<FactoredOptions&>(run.engine->optimizer().param_groups()[0].options());
    if (group->rank() == 1) options.beta = 0.5;
    EXPECT_THAT(message_of([&] { run.engine->step(); }), HasSubstr("defaults: beta"));
    options.beta = 0.5;
    run.engine->step();
    // States other than those the engine was made with.
    const WholeRank other(group, without_preconditioners, zero2);
    other.backward(0);
    static_cast<FactoredOptions&>(other.engine->optimizer().param_groups()[0].options()).largest =
        64;
    EXPECT_THAT(message_of([&] { other.engine->step(); }),
                HasSubstr("got options that need the state 'preconditioner' with sizes"));
  });
}

TEST(WholeTensorEngineFailures, AnExceptionInAStepFailsTheEngineOnAllRanks) {
  const OptimizerPlan plan = whole_tensor<Own<GivesUpWhole>>(OwnOptions());
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero2}) {
    run_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
      const WholeRank run(std::move(group), plan, configuration_of(strategy));
      run.train(0, 4);
      run.backward(4);
      EXPECT_THAT(message_of([&] { run.engine->step(); }), HasSubstr("has given up"));
      EXPECT_THAT(message_of([&] { run.engine->step(); }), HasSubstr("has given up"));
    });
  }
}

/// Negative control: the comparisons above notice a lost state.
TEST(WholeTensorEngineNegativeControl, AStateWithoutANameIsLostOnTheWay) {
  const OptimizerPlan plan = factored();
  const auto run_to = [&](bool loses) {
    return on_ranks(2,
                    [&](std::shared_ptr<ProcessGroup> group) {
                      const WholeRank run(std::move(group), plan,
                                          configuration_of(Strategy::kZero2));
                      run.train(0, 2);
                      StateDict state = run.engine->state_dict(StateScope::kEveryRank);
                      if (loses) {
                        for (auto& [name, entry] : state.entries) {
                          if (name.ends_with(".rows")) entry.pieces[0].values.zero_();
                        }
                      }
                      run.engine->load_state_dict(state);
                      run.train(2, 4);
                      return run.engine->state_dict(StateScope::kEveryRank);
                    })
        .front();
  };
  EXPECT_NE(bit_differences(run_to(true), run_to(false)), "");
}

}  // namespace
}  // namespace tessera::internal::testing
