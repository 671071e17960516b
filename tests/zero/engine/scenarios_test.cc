#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/memory_meter.h"
#include "tessera/parallelize.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/recording_group.h"
#include "tessera/tests/support/training.h"

// Scenarios of PyTorch's suites for FSDP and ZeRO; each has the number of the table in
// docs/testing.md, which also says where the other scenarios are.

namespace tessera::internal::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

torch::optim::AdamWOptions plain_adamw() { return torch::optim::AdamWOptions(0.02).eps(1e-6); }

std::vector<Configuration> sharded_configurations(int world) {
  std::vector<Configuration> configurations;
  for (const Configuration& configuration : configurations_of_world(world)) {
    if (configuration.degrees_at(world).optimizer > 1) configurations.push_back(configuration);
  }
  return configurations;
}

/// Two to five rows on four ranks: most ranks have no part of most parameters.
TEST(Scenarios, Scenario40_FewerRowsThanRanks) {
  struct FewRows : Net {
    FewRows() {
      for (int64_t rows = 2; rows <= 5; ++rows) {
        layers.push_back(register_module("layer" + std::to_string(rows),
                                         torch::nn::Linear(rows == 2 ? 7 : rows - 1, rows)));
      }
    }
    Tensor forward(const Tensor& input, const Moment&) override {
      Tensor x = input;
      for (torch::nn::Linear& layer : layers) x = at::tanh(layer(x));
      return x;
    }
    std::vector<torch::nn::Linear> layers;
  };
  const Subject few_rows = {.name = "FewRows",
                            .make = [] { return std::make_shared<FewRows>(); },
                            .input_shape = {7},
                            .target_shape = {5}};
  const Schedule& schedule = schedules()[1];
  const Outcome expected = oracle(few_rows, schedule, 4);
  for (const Configuration& configuration : configurations_of_world(4)) {
    EXPECT_EQ(differences(train_on_threads(few_rows, at::kDouble, configuration, schedule, 4),
                          expected, few_rows.tolerance),
              "")
        << configuration;
  }
}

/// A destroyed engine leaves nothing behind: no memory, no hook, no reference to model or group.
TEST(Scenarios, Scenario47_DeletingTheEngineFreesEverything) {
  for (const Configuration& configuration :
       {configuration_of(Strategy::kZero2), configuration_of(Strategy::kZero3), resharding(1)}) {
    run_ranks(2, [&](std::shared_ptr<ProcessGroup> world) {
      constexpr int64_t kWidth = 512;
      const auto make_and_train = [&] {
        const auto model = std::make_shared<torch::nn::LinearImpl>(kWidth, kWidth);
        auto engine = parallelize(model, plain_adamw(), options_of(configuration), world);
        model->forward(at::ones({2, kWidth})).sum().backward();
        engine->step();
        const std::weak_ptr<torch::nn::Module> watched = model;
        const int64_t held = engine->memory().now().total();
        engine.reset();
        EXPECT_EQ(watched.use_count(), 1) << configuration;
        return held;
      };
      const long references = world.use_count();
      make_and_train();
      make_and_train();
      world->barrier("before");
      const int64_t before = process_pss_bytes();
      int64_t held = 0;
      constexpr int kTimes = 24;
      for (int i = 0; i < kTimes; ++i) held += make_and_train();
      world->barrier("after");
      EXPECT_EQ(world.use_count(), references) << configuration;
      // Both ranks are in this process.
      EXPECT_LT(process_pss_bytes() - before, 2 * held / 4)
          << configuration << ": " << kTimes << " engines held " << held << " bytes on each rank";
    });
  }
}

/// Under no_sync() the replicas communicate nothing before the last backward.
TEST(Scenarios, Scenario49_HsdpReducesInTheLastMicroStepOnly) {
  run_ranks(4, [](const std::shared_ptr<ProcessGroup>& group) {
    const auto recording = std::make_shared<Recording>();
    const auto world = std::make_shared<RecordingGroup>(group, recording);
    const std::shared_ptr<Net> net = prepare(subject("Blocks").make(), at::kFloat, 1);
    const auto engine = parallelize(net, make_plan(*net), options_of(hybrid(2, 2, 2)), world);
    for (int step = 0; step < 2; ++step) {
      for (int micro = 0; micro < 3; ++micro) {
        std::optional<Engine::NoSync> no_sync;
        if (micro < 2) no_sync.emplace(engine->no_sync());
        const Moment moment{.step = step, .rank = world->rank()};
        const Batch batch = batch_of(subject("Blocks"), at::kFloat, {.name = ""}, moment, micro);
        recording->clear();
        loss_of(*net, batch, moment, {.name = ""}).backward();
        const int64_t reductions =
            recording->count("reduce_scatter") + recording->count("all_reduce");
        EXPECT_EQ(reductions > 0, micro == 2);
      }
      engine->step();
    }
  });
}

/// Gradients reduced in each micro-step (split), or added whole and reduced once: both equal the
/// gradient of the large batch.
TEST(Scenarios, Scenario50_BothModesOfAccumulationAreExact) {
  for (const int world : {3, 4}) {
    for (const Configuration& configuration : sharded_configurations(world)) {
      for (const Schedule::Sync sync : {Schedule::Sync::kEach, Schedule::Sync::kLast}) {
        const Schedule schedule{.name = "", .micro_steps = 4, .sync = sync, .max_grad_norm = 0.05};
        const Outcome expected = oracle(subject("Blocks"), schedule, world);
        const Outcome got =
            train_on_threads(subject("Blocks"), at::kDouble, configuration, schedule, world);
        EXPECT_EQ(differences(got, expected, 1e-12), "") << configuration;
      }
    }
  }
}

/// Frozen parameters are split and gathered like the others, but have no gradients and no optimizer
/// state.
TEST(Scenarios, Scenario51_FrozenParametersHaveNoGradientMemory) {
  for (const int world : {2, 3}) {
    MemoryBytes mixed;
    MemoryBytes trainable;
    for (const bool is_mixed : {false, true}) {
      const auto remember = [&](Engine& engine, int) {
        if (engine.group().rank() != 0) return;
        (is_mixed ? mixed : trainable) = engine.memory().now();
      };
      train_on_threads(subject(is_mixed ? "FrozenBlocks" : "Blocks"), at::kFloat,
                       configuration_of(Strategy::kZero3), schedules().front(), world,
                       {.after_step = remember});
    }
    EXPECT_LT(mixed[MemoryClass::kGradients], trainable[MemoryClass::kGradients]);
    EXPECT_LT(mixed[MemoryClass::kOptimizer], trainable[MemoryClass::kOptimizer]);
    EXPECT_GE(mixed[MemoryClass::kParameters], trainable[MemoryClass::kParameters]);
  }
}

TEST(Scenarios, Scenario51_UnfreezingWhileTrainingIsRefusedByName) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    const std::shared_ptr<Net> net = prepare(subject("FrozenBlocks").make(), at::kFloat, 1);
    const auto engine =
        parallelize(net, make_plan(*net), options_of(configuration_of(Strategy::kZero3)), world);
    const Moment moment{.step = 0, .rank = world->rank()};
    const auto backward = [&] {
      const Batch batch = batch_of(subject("FrozenBlocks"), at::kFloat, {.name = ""}, moment, 0);
      loss_of(*net, batch, moment, {.name = ""}).backward();
    };
    backward();
    engine->step();
    net->named_parameters()["blocks.3.linear.weight"].set_requires_grad(true);
    EXPECT_THAT(
        [&] {
          backward();
          engine->step();
        },
        ThrowsMessage<c10::Error>(
            HasSubstr("parameter 'blocks.3.linear.weight' is frozen in this engine")));
  });
}

/// A model without trainable parameters is evaluated with split parameters.
TEST(Scenarios, Scenario51_AnAllFrozenModelIsEvaluated) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    const std::shared_ptr<Net> net = prepare(subject("Blocks").make(), at::kFloat, 1);
    const std::shared_ptr<Net> plain = prepare(subject("Blocks").make(), at::kFloat, 1);
    for (Tensor& parameter : net->parameters()) parameter.set_requires_grad(false);
    const auto engine =
        parallelize(net, plain_adamw(), options_of(configuration_of(Strategy::kZero3)), world);
    const Tensor input = at::ones({3, 7}, at::kFloat).requires_grad_();
    const Tensor other = at::ones({3, 7}, at::kFloat).requires_grad_();
    net->forward(input, {}).sum().backward();
    plain->forward(other, {}).sum().backward();
    EXPECT_TRUE(at::equal(input.grad(), other.grad()));
    EXPECT_EQ(engine->memory().now()[MemoryClass::kGradients], 0);
    EXPECT_EQ(engine->memory().now()[MemoryClass::kOptimizer], 0);
  });
}

/// Ranks use different units, in evaluation too; a unit that a rank did not use counts as zero.
TEST(Scenarios, Scenario52_RanksUseDifferentUnits) {
  for (const int world : {3, 4}) {
    size_t turn = 0;
    for (const Configuration& configuration : sharded_configurations(world)) {
      size_t turn_of_model = turn++;
      for (const char* model : {"BranchingBlocks", "Branches", "RankOrder"}) {
        if (!has_turn(turn_of_model++, 3)) continue;
        const Outcome expected = oracle(subject(model), schedules().front(), world);
        const Outcome got = train_on_threads(subject(model), at::kDouble, configuration,
                                             schedules().front(), world);
        EXPECT_EQ(differences(got, expected, 1e-12), "") << configuration << " " << model;
      }
    }
  }
}

/// All ranks get rank 0's parameters; the other ranks' values have no effect.
TEST(Scenarios, Scenario56_OneRanksWeightsReachAll) {
  for (const Configuration& configuration : configurations_of_world(4)) {
    run_ranks(4, [&](const std::shared_ptr<ProcessGroup>& world) {
      const std::shared_ptr<Net> net = prepare(subject("TiedBlocks").make(), at::kFloat, 1);
      const auto expected = copy_parameters(*net);
      if (world->rank() != 0) {
        const at::NoGradGuard no_grad;
        for (Tensor& parameter : net->parameters()) {
          parameter.fill_(std::numeric_limits<float>::quiet_NaN());
        }
      }
      const auto engine = parallelize(net, make_plan(*net), options_of(configuration), world);
      EXPECT_EQ(bit_differences(copy_parameters(*net), expected), "") << configuration;
    });
  }
}

/// The same norm on every rank, under every configuration and over units of several dtypes.
TEST(Scenarios, Scenario57_OneNormForAllRanksConfigurationsAndDtypes) {
  for (const char* model : {"MixedDtypes", "Blocks", "TinyAndScalar"}) {
    const Schedule& schedule = schedules()[1];
    const Outcome expected = oracle(subject(model), schedule, 4);
    std::vector<double> norms;
    for (const Configuration& configuration : configurations_of_world(4)) {
      const Outcome got = train_on_threads(subject(model), at::kDouble, configuration, schedule, 4);
      if (norms.empty()) norms = got.grad_norms;
      if (configuration.keeps_bits()) {
        EXPECT_EQ(bit_differences(got.grad_norms, norms), "") << configuration;
      }
      for (size_t step = 0; step < norms.size(); ++step) {
        EXPECT_NEAR(got.grad_norms[step], expected.grad_norms[step],
                    subject(model).tolerance * expected.grad_norms[step])
            << configuration;
      }
    }
  }
}

/// An overflow on one rank: every rank skips the step, the scale halves, and later grows by its
/// schedule.
TEST(Scenarios, Scenario58_AnOverflowOnOneRankSkipsTheStepOfAll) {
  for (const Configuration& configuration :
       {configuration_of(Strategy::kDdp), configuration_of(Strategy::kZero1),
        configuration_of(Strategy::kZero3), hybrid(3, 3, 3)}) {
    for (const int culprit : {0, 2}) {
      run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& world) {
        const std::shared_ptr<Net> net = prepare(subject("Blocks").make(), at::kFloat, 1);
        Options options = options_of(configuration);
        options.loss_scale = LossScale{.initial = 1024.0, .growth_interval = 2};
        const auto engine = parallelize(net, make_plan(*net), options, world);
        const std::vector<double> expected_scales = {1024, 1024, 2048, 1024, 1024, 2048};
        for (int step = 0; step < 6; ++step) {
          EXPECT_EQ(engine->loss_scale(), expected_scales[static_cast<size_t>(step)])
              << configuration << " step " << step;
          const Moment moment{.step = step, .rank = world->rank()};
          const Batch batch = batch_of(subject("Blocks"), at::kFloat, {.name = ""}, moment, 0);
          Tensor loss = engine->scale(loss_of(*net, batch, moment, {.name = ""}));
          const bool overflows = step == 2;
          if (overflows && world->rank() == culprit) {
            loss = loss * std::numeric_limits<float>::infinity();
          }
          const auto before = copy_parameters(*net);
          loss.backward();
          const StepResult result = engine->step();
          EXPECT_EQ(result.committed, !overflows);
          EXPECT_EQ(bit_differences(copy_parameters(*net), before).empty(), overflows);
          EXPECT_EQ(std::isfinite(result.grad_norm), !overflows);
        }
        parameter_hash(*engine);
      });
    }
  }
}

/// A scale that is a power of two does not change the training's bits.
TEST(Scenarios, Scenario58_TheScaleLeavesNoTrace) {
  const auto trained = [](const Configuration& configuration, bool is_scaled) {
    std::map<std::string, Tensor> parameters;
    run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& world) {
      const std::shared_ptr<Net> net = prepare(subject("Blocks").make(), at::kFloat, 1);
      Options options = options_of(configuration);
      options.max_grad_norm = 0.05;
      if (is_scaled) options.loss_scale = LossScale{.initial = 4096.0};
      const auto engine = parallelize(net, make_plan(*net), options, world);
      for (int step = 0; step < 3; ++step) {
        const Moment moment{.step = step, .rank = world->rank()};
        const Batch batch = batch_of(subject("Blocks"), at::kFloat, {.name = ""}, moment, 0);
        engine->scale(loss_of(*net, batch, moment, {.name = ""})).backward();
        engine->step();
      }
      if (world->rank() == 0) parameters = copy_parameters(*net);
    });
    return parameters;
  };
  for (const Configuration& configuration :
       {configuration_of(Strategy::kZero2), configuration_of(Strategy::kZero3)}) {
    EXPECT_EQ(bit_differences(trained(configuration, true), trained(configuration, false)), "")
        << configuration;
  }
}

}  // namespace
}  // namespace tessera::internal::testing
