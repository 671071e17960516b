// Moments in 8 bits under engines: equal bits under every configuration, state that moves, memory
// as predicted, and explicit conversions to and from moments in the masters' dtype.
#include "tessera/eight_bit_options.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/checkpoint.h"
#include "tessera/eight_bit_state.h"
#include "tessera/lion_options.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/support/state_streams.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/zero/state/saved_rank.h"

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using torch::optim::AdamWOptions;

/// A model and its optimizer.
struct Task {
  std::string model;
  OptimizerPlan plan;
  at::ScalarType dtype = at::kFloat;
  bool is_narrow = false;  ///< parameters in bfloat16 over masters in `dtype`
};

struct TaskRank : EngineRank<Net> {
  TaskRank(std::shared_ptr<ProcessGroup> group, const Task& task, Configuration configuration,
           uint64_t seed = 3)
      : EngineRank(std::move(group), prepare(subject(task.model).make(), task.dtype, seed),
                   task.plan, options_for(task, std::move(configuration))),
        trained(subject(task.model)),
        computed(task.is_narrow ? at::kBFloat16 : task.dtype) {}

  at::Tensor loss(int step) const override { return loss(step, 0); }
  at::Tensor loss(int step, int micro_step) const {
    const Schedule schedule{.name = "", .micro_steps = kMicroSteps};
    const Moment moment{.step = step, .rank = world->rank()};
    const Batch batch = batch_of(trained, computed, schedule, moment, micro_step);
    return loss_of(*net, batch, moment, schedule);
  }
  void train(int begin, int end) const {
    for (int step = begin; step < end; ++step) {
      for (int micro = 0; micro < kMicroSteps; ++micro) loss(step, micro).backward();
      engine->step();
    }
  }
  void expect_predicted_memory() const {
    EXPECT_EQ(engine->memory().now()[MemoryClass::kOptimizer],
              predicted_memory(*engine, kMicroSteps)[MemoryClass::kOptimizer]);
  }

  static constexpr int kMicroSteps = 2;
  Subject trained;
  at::ScalarType computed;

 private:
  static Options options_for(const Task& task, Configuration configuration) {
    if (task.is_narrow) configuration.precision.parameters = at::kBFloat16;
    return small_options_of(configuration);
  }
};

bool is_vector_parameter(std::string_view, const at::Tensor& parameter) {
  return parameter.dim() < 2;
}

/// All 8-bit algorithms in one plan, together with an fp32 one.
OptimizerPlan mixed_plan() {
  return {AdamW8bitOptions(0.02),
          {{"vectors", &is_vector_parameter, Lion8bitOptions(0.01).weight_decay(0.2)},
           {"odd", [](std::string_view, const at::Tensor& of) { return of.size(0) % 2 == 1; },
            AdamWOptions(0.02)}}};
}

std::vector<Task> tasks() {
  return {{"OddMlp", mixed_plan()},
          {"TinyAndScalar", AdamW8bitOptions(0.02)},
          {"EmptyParameter", Lion8bitOptions(0.01)},
          {"ChannelsLast", AdamW8bitOptions(0.02)},
          {"OddMlp", AdamW8bitOptions(0.02), at::kDouble},
          {"OddMlp", AdamW8bitOptions(0.02), at::kFloat, /*is_narrow=*/true}};
}

class EightBit : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }

  /// The state after steps [begin, end), starting from `start` unless it is empty.
  States trained(const Task& task, const Configuration& configuration, int begin, int end,
                 const States& start, StateScope scope) const {
    return on_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const auto rank = static_cast<size_t>(group->rank());
      const TaskRank run(std::move(group), task, configuration, start.empty() ? 3 : 77);
      if (!start.empty()) run.engine->load_state_dict(start[rank]);
      run.train(begin, end);
      run.expect_predicted_memory();
      return run.engine->state_dict(scope);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(World, EightBit, ::testing::ValuesIn(spanning_worlds()));

TEST_P(EightBit, HasTheSameBitsUnderEveryConfigurationAndMovesBetweenThem) {
  const std::vector<Configuration> configurations = configurations_at(world());
  for (const Task& task : tasks()) {
    SCOPED_TRACE(task.model);
    const StateDict expected =
        trained(task, configurations[0], 0, 4, {}, StateScope::kEveryRank).back();
    for (size_t i = 0; i < configurations.size(); ++i) {
      const Configuration& to = configurations[(i + 1) % configurations.size()];
      const States half = trained(task, configurations[i], 0, 2, {}, StateScope::kSharded);
      const States all = trained(task, to, 2, 4, half, StateScope::kEveryRank);
      EXPECT_EQ(bit_differences(all.back(), expected), "") << configurations[i] << " to " << to;
    }
  }
}

TEST_P(EightBit, HasTheSameBitsInEveryRowOfTheTable) {
  const Task task = tasks().front();
  const StateDict expected =
      trained(task, configuration_of(Strategy::kDdp), 0, 3, {}, StateScope::kEveryRank).back();
  for (const Configuration& configuration : spanning_configurations(world())) {
    if (!configuration.keeps_bits()) continue;
    const States all = trained(task, configuration, 0, 3, {}, StateScope::kEveryRank);
    EXPECT_EQ(bit_differences(all.back(), expected), "") << configuration;
  }
}

TEST_P(EightBit, MovesBetweenWorldsThroughStreamsAndCheckpoints) {
  for (const Task& task : tasks()) {
    SCOPED_TRACE(task.model);
    const TemporaryDirectory directory;
    StateDict expected;
    const StateDict streamed = joined(on_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const TaskRank run(std::move(group), task, configuration_of(Strategy::kZero3));
      run.train(0, 2);
      save_checkpoint(*run.engine, directory.path());
      StateDict state = run.engine->state_dict(StateScope::kOneRank);
      if (run.world->rank() == 0) expected = std::move(state);
      StateCollector sink;
      run.engine->write_state(sink);
      return sink.take();
    }));
    EXPECT_EQ(bit_differences(streamed, expected), "");
    run_ranks(world() % 4 + 1, [&](std::shared_ptr<ProcessGroup> group) {
      const TaskRank run(std::move(group), task, configuration_of(Strategy::kZero1), 77);
      run.train(0, 1);
      StateReader source(streamed);
      run.engine->read_state(source);
      EXPECT_EQ(bit_differences(run.engine->state_dict(StateScope::kEveryRank), expected), "");
      run.train(2, 3);
      const StateDict later = run.engine->state_dict(StateScope::kEveryRank);
      ASSERT_TRUE(load_checkpoint(*run.engine, directory.path()).has_value());
      EXPECT_EQ(bit_differences(run.engine->state_dict(StateScope::kEveryRank), expected), "");
      run.train(2, 3);
      EXPECT_EQ(bit_differences(run.engine->state_dict(StateScope::kEveryRank), later), "");
    });
  }
}

TEST_P(EightBit, ContinuesStateOfTheMastersDtypeExplicitlyAndGivesItBack) {
  const Configuration configuration = configuration_of(Strategy::kZero3);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const Task wide{"OddMlp", AdamWOptions(0.02), dtype};
    const Task coded{"OddMlp", AdamW8bitOptions(0.02), dtype};
    const States half = trained(wide, configuration, 0, 3, {}, StateScope::kSharded);
    States quantized;
    StateDict whole;
    for (const StateDict& share : half) {
      quantized.push_back(quantize_state(share));
      whole.merge(share);
    }
    StateDict all;
    for (const StateDict& share : quantized) all.merge(share);
    EXPECT_EQ(bit_differences(joined({all}), quantize_state(joined({whole}))), "")
        << "shares are quantised as the whole";

    const States on =
        trained(coded, configuration_of(Strategy::kZero1), 3, 5, quantized, StateScope::kSharded);
    States back;
    for (const StateDict& share : on) back.push_back(dequantize_state(share, {.dtype = dtype}));
    const States end = trained(wide, configuration, 5, 6, back, StateScope::kEveryRank);
    const States expected = trained(wide, configuration, 0, 6, {}, StateScope::kEveryRank);
    for (const auto& [name, entry] : expected.back().entries) {
      if (!name.starts_with("model.")) continue;
      EXPECT_TRUE(torch::allclose(end.back().entries.at(name).tensor(), entry.tensor(), 0.05, 0.01))
          << name;
    }
  }
}

TEST_P(EightBit, RefusesStateOfTheOtherFormAndNamesTheWay) {
  const Configuration configuration = configuration_of(Strategy::kZero2);
  const Task wide{"OddMlp", AdamWOptions(0.02)};
  const Task coded{"OddMlp", AdamW8bitOptions(0.02)};
  const auto refuses = [&](const Task& from, const Task& to, const std::string& way,
                           const std::string& other) {
    const States state = trained(from, configuration, 0, 1, {}, StateScope::kSharded);
    const StateDict whole = joined(state);
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const auto rank = static_cast<size_t>(group->rank());
      const TaskRank run(std::move(group), to, configuration);
      const auto names_the_way = AllOf(HasSubstr(way), Not(HasSubstr(other)));
      EXPECT_THAT(message_of([&] { run.engine->load_state_dict(state[rank]); }), names_the_way);
      StateReader source(whole);
      EXPECT_THAT(message_of([&] { run.engine->read_state(source); }), names_the_way);
      run.train(0, 1);
    });
  };
  refuses(wide, coded, "tessera::quantize_state()", "dequantize_state");
  refuses(coded, wide, "tessera::dequantize_state()", "::quantize_state");
}

TEST_P(EightBit, RefusesCodesInAnotherMemoryOrder) {
  const Configuration configuration = configuration_of(Strategy::kZero2);
  const Task task{"ChannelsLast", AdamW8bitOptions(0.02)};
  States state = trained(task, configuration, 0, 1, {}, StateScope::kSharded);
  int changed = 0;
  for (StateDict& share : state) {
    for (auto& [name, entry] : share.entries) {
      if (!name.ends_with("_codes") || entry.sizes.size() != 4) continue;
      ++changed;
      entry.strides = at::empty(entry.sizes).strides().vec();
    }
  }
  ASSERT_GT(changed, 0);
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const auto rank = static_cast<size_t>(group->rank());
    const TaskRank run(std::move(group), task, configuration);
    EXPECT_THAT(message_of([&] { run.engine->load_state_dict(state[rank]); }),
                HasSubstr("codes share scales by blocks in memory order; give the parameter the "
                          "memory format that it was saved with"));
    run.train(0, 1);
  });
}

TEST_P(EightBit, TakesNoMemoryPerStepAfterTheSecond) {
  const Task task = tasks().front();
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const TaskRank run(std::move(group), task, configuration_of(Strategy::kZero2));
    run.train(0, 2);
    const int64_t allocations = run.engine->memory().allocations();
    run.train(2, 5);
    EXPECT_EQ(run.engine->memory().allocations(), allocations);
  });
}

TEST(EightBitMemory, IsAByteForEachMomentAndAScaleForEachBlock) {
  run_ranks(1, [](std::shared_ptr<ProcessGroup> group) {
    const auto bytes_of = [&](const OptimizerPlan& plan) {
      const auto model =
          std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(64, 96).bias(false));
      const auto engine = parallelize(model, plan, {}, group);
      return engine->memory().now()[MemoryClass::kOptimizer];
    };
    constexpr int64_t kNumel = 64 * 96;
    EXPECT_EQ(bytes_of(AdamWOptions()), 8 * kNumel);
    EXPECT_EQ(bytes_of(AdamW8bitOptions()), 2 * kNumel + kNumel / 8);  // 2.125 bytes
    EXPECT_EQ(bytes_of(Lion8bitOptions()), kNumel + kNumel / 16);
  });
}

/// The mean of the last losses of one rank's training.
double mean_of_last_losses(const OptimizerPlan& plan) {
  double sum = 0;
  run_ranks(1, [&](std::shared_ptr<ProcessGroup> group) {
    const TaskRank run(std::move(group), {"DeepMlp", plan}, configuration_of(Strategy::kDdp));
    for (int step = 0; step < 150; ++step) {
      const at::Tensor loss = run.loss(step % 4);
      loss.backward();
      run.engine->step();
      if (step >= 146) sum += loss.item<double>();
    }
  });
  return sum / 4;
}

/// docs/optimizers.md states the tolerance.
TEST(EightBitConvergence, ComesAsFarAsFp32) {
  const auto close = [](double got, double expected) {
    EXPECT_GT(expected, 0);
    EXPECT_NEAR(got, expected, 0.05 * expected);
  };
  close(mean_of_last_losses(AdamW8bitOptions(0.003)), mean_of_last_losses(AdamWOptions(0.003)));
  close(mean_of_last_losses(Lion8bitOptions(0.001)), mean_of_last_losses(LionOptions(0.001)));
}

TEST(EightBitNegativeControl, RoundsMoments) {
  std::vector<at::Tensor> ends;
  for (const OptimizerPlan& plan :
       {OptimizerPlan(AdamW8bitOptions(0.02)), OptimizerPlan(AdamWOptions(0.02))}) {
    run_ranks(1, [&](std::shared_ptr<ProcessGroup> group) {
      const TaskRank run(std::move(group), {"OddMlp", plan}, configuration_of(Strategy::kDdp));
      run.train(0, 3);
      ends.push_back(run.net->parameters()[0].detach().clone());
    });
  }
  EXPECT_FALSE(ends[0].equal(ends[1]));
  EXPECT_TRUE(torch::allclose(ends[0], ends[1], 0.1, 0.02));
}

}  // namespace
}  // namespace tessera::internal::testing
