#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/memory_meter.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/same_bits.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/zero/engine/engine_fixture.h"

// Options::average: the average of the weights has ddp's bits under every configuration, and equals
// that of a plain loop. Its scope is tested in average_scope_test.cc.

namespace tessera::internal::testing {
namespace {

using Shown = std::map<std::string, at::Tensor>;

Configuration averaging(Configuration configuration, const WeightAverage& average) {
  configuration.average = average;
  return configuration;
}

/// Copies of the model's current values.
Shown shown_by(Engine& engine) {
  const auto whole = engine.full_parameters();
  Shown values;
  for (const Parameter& parameter : engine.parameters()) {
    values[parameter.name] = parameter.tensor.detach().contiguous().clone();
  }
  return values;
}

/// The average after each step, and the outcome of the run.
struct AveragedRun {
  std::vector<Shown> averages;
  Outcome outcome;
};

AveragedRun run_averaged(const std::string& model, at::ScalarType dtype,
                         const Configuration& configuration, int world, const Schedule& schedule) {
  AveragedRun run;
  std::mutex mutex;
  const int64_t first = configuration.average->start_step;
  const auto look = [&](Engine& engine, int step) {
    if (step + 1 < first) return;
    Engine::AverageScope scope = engine.begin_average();
    Shown shown = shown_by(engine);
    scope.end();
    const std::lock_guard lock(mutex);
    if (engine.group().rank() == 0) run.averages.push_back(std::move(shown));
  };
  run.outcome =
      train_on_threads(subject(model), dtype, configuration, schedule, world, {.after_step = look});
  return run;
}

std::string run_differences(const AveragedRun& got, const AveragedRun& expected) {
  std::string text;
  if (got.averages.size() != expected.averages.size()) return "another number of averages\n";
  for (size_t i = 0; i < got.averages.size(); ++i) {
    const std::string of_step = bit_differences(got.averages[i], expected.averages[i]);
    if (!of_step.empty()) text += "average " + std::to_string(i) + ": " + of_step;
  }
  return text;
}

struct AveragingCase {
  Configuration configuration;
  int world;
};

std::vector<AveragingCase> averaging_cases(
    const std::function<bool(const Configuration&)>& wants = {}) {
  std::vector<AveragingCase> all;
  for (const int world : spanning_worlds()) {
    for (const Configuration& configuration : spanning_configurations(world)) {
      if (!wants || wants(configuration)) all.push_back({configuration, world});
    }
  }
  return all;
}

std::string name_of_averaging_case(const ::testing::TestParamInfo<AveragingCase>& info) {
  return info.param.configuration.name + "_World" + std::to_string(info.param.world);
}

class WeightAverages : public ::testing::TestWithParam<AveragingCase> {
 protected:
  static constexpr const char* kModels[] = {"OddMlp",       "UnusedEverywhere", "Branches",
                                            "MixedDtypes",  "FrozenBlocks",     "TiedMlp",
                                            "TinyAndScalar"};
  static Schedule schedule() { return {.name = "", .steps = 4, .bucket_bytes = 1024}; }
};
INSTANTIATE_TEST_SUITE_P(, WeightAverages, ::testing::ValuesIn(averaging_cases()),
                         name_of_averaging_case);

class WeightAveragesOfAll : public WeightAverages {};
INSTANTIATE_TEST_SUITE_P(, WeightAveragesOfAll,
                         ::testing::ValuesIn(averaging_cases(&Configuration::keeps_bits)),
                         name_of_averaging_case);

TEST_P(WeightAveragesOfAll, HaveTheBitsOfDdp) {
  static std::map<std::string, AveragedRun> remembered;  // of ddp
  const auto& [configuration, world] = GetParam();
  bool decays = world % 2 == 0;
  for (const char* model : kModels) {
    decays = !decays;  // each model gets both kinds of averages, in different worlds
    const auto average =
        decays ? WeightAverage{.decay = 0.75} : WeightAverage{.start_step = 2, .every = 2};
    const std::string key = std::string(model) + std::to_string(world);
    if (!remembered.contains(key)) {
      remembered[key] =
          run_averaged(model, at::kFloat, averaging(configuration_of(Strategy::kDdp), average),
                       world, schedule());
    }
    const AveragedRun got =
        run_averaged(model, at::kFloat, averaging(configuration, average), world, schedule());
    EXPECT_EQ(run_differences(got, remembered[key]), "") << model;
    EXPECT_EQ(bit_differences(got.outcome, remembered[key].outcome), "") << model;
  }
}

/// The run equals that of an engine without an average, although the model showed the average
/// between any two steps.
TEST_P(WeightAverages, LeaveTheRunAsItIs) {
  const auto& [configuration, world] = GetParam();
  for (const char* model : {"OddMlp", "UnusedEverywhere"}) {
    const Outcome expected =
        train_on_threads(subject(model), at::kFloat, configuration, schedule(), world);
    const AveragedRun got = run_averaged(
        model, at::kFloat, averaging(configuration, {.decay = 0.5}), world, schedule());
    EXPECT_EQ(bit_differences(got.outcome, expected), "") << model;
  }
}

/// With masters the average is of the masters, and the model shows it rounded.
TEST_P(WeightAverages, AreOfTheMastersAndShownRounded) {
  const auto& [given, world] = GetParam();
  Configuration configuration = averaging(given, {.decay = 0.75});
  configuration.precision.parameters = at::kBFloat16;
  const auto check = [](Engine& engine, int step) {
    const StateDict state = engine.state_dict(StateScope::kEveryRank);
    Engine::AverageScope scope = engine.begin_average();
    const Shown shown = shown_by(engine);
    scope.end();
    int64_t wider = 0;
    for (const Parameter& parameter : engine.parameters()) {
      if (!parameter.is_trainable) continue;
      const at::Tensor average =
          state.entries.at("optimizer." + parameter.name + ".average").tensor();
      ASSERT_EQ(average.scalar_type(), at::kFloat);
      EXPECT_TRUE(have_same_bits(shown.at(parameter.name), average.to(at::kBFloat16)))
          << parameter.name;
      if (!have_same_bits(average, average.to(at::kBFloat16).to(at::kFloat))) ++wider;
    }
    EXPECT_GT(wider, 0) << "what was averaged was rounded";
    EXPECT_EQ(state.entries.at("engine.averaged_updates").tensor().item<int64_t>(), step + 1);
    EXPECT_EQ(bit_differences(engine.state_dict(StateScope::kEveryRank), state), "")
        << "the model has its values again";
  };
  train_on_threads(subject("OddMlp"), at::kFloat, configuration, schedule(), world,
                   {.after_step = check});
}

/// Without the tests' policy of freeing eagerly, which no user has.
class WeightAverageBytes : public WeightAverages {};
INSTANTIATE_TEST_SUITE_P(
    , WeightAverageBytes,
    ::testing::ValuesIn(averaging_cases([](const Configuration& configuration) {
      return !configuration.free_eagerly;
    })),
    name_of_averaging_case);

TEST_P(WeightAverageBytes, AreThoseOfTheFormulaAndTheScopeTakesNone) {
  const auto& [given, world] = GetParam();
  for (const bool is_narrow : {false, true}) {
    Configuration configuration = averaging(given, {.decay = 0.75});
    if (is_narrow) configuration.precision.parameters = at::kBFloat16;
    const auto check = [](Engine& engine, int step) {
      const auto expect_bytes = [&] {
        const MemoryBytes now = engine.memory().now();
        const MemoryBytes predicted = predicted_memory(engine, 1);
        for (const MemoryClass memory_class :
             {MemoryClass::kParameters, MemoryClass::kGradients, MemoryClass::kOptimizer,
              MemoryClass::kUnshardedParameters, MemoryClass::kRoot}) {
          EXPECT_EQ(now[memory_class], predicted[memory_class]) << to_string(memory_class);
        }
      };
      expect_bytes();
      const MemoryBytes before = engine.memory().now();
      const int64_t allocations = engine.memory().allocations();
      Engine::AverageScope scope = engine.begin_average();
      expect_bytes();
      scope.end();
      EXPECT_EQ(engine.memory().now(), before);
      if (step > 1) {
        EXPECT_EQ(engine.memory().allocations(), allocations);
      }
    };
    for (const char* model : {"DeepMlp", "MixedDtypes", "FrozenBlocks"}) {
      if (is_narrow && std::string(model) == "MixedDtypes") continue;
      train_on_threads(subject(model), at::kFloat, configuration, schedule(), world,
                       {.after_step = check});
    }
  }
}

// --- Against a plain loop ---

/// The averages of a plain loop over the batches of `world` ranks, in fp64.
std::vector<Shown> plain_averages(const WeightAverage& average, int world, int steps) {
  const std::shared_ptr<Net> net = make_net();
  torch::optim::AdamW optimizer(net->parameters(), adamw());
  std::vector<Shown> all;
  Shown now;
  int64_t updates = 0;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (int rank = 0; rank < world; ++rank) sum = sum + loss_on(*net, rank, step);
    (sum / static_cast<double>(world)).backward();
    optimizer.step();
    const int64_t number = step + 1;
    if (number >= average.start_step && (number - average.start_step) % average.every == 0) {
      for (const auto& [name, values] : copy_parameters(*net)) {
        at::Tensor& mean = now[name];
        if (updates == 0) {
          mean = values.clone();
        } else if (average.decay.has_value()) {
          mean = *average.decay * mean + (1.0 - *average.decay) * values;
        } else {
          mean = mean + (values - mean) / static_cast<double>(updates + 1);
        }
      }
      ++updates;
    }
    all.push_back(now);
  }
  return all;
}

class AveragesBesideALoop : public EngineTest {};
INSTANTIATE_TEST_SUITE_P(, AveragesBesideALoop, configurations_and_worlds(), name_of);

TEST_P(AveragesBesideALoop, AreTheSame) {
  for (const WeightAverage average :
       {WeightAverage{.decay = 0.9}, WeightAverage{.decay = 0.0, .start_step = 2}, WeightAverage{},
        WeightAverage{.start_step = 2, .every = 3}}) {
    constexpr int kSteps = 6;
    const std::vector<Shown> expected = plain_averages(average, size(), kSteps);
    run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
      Options options = small_options_of(configuration());
      options.average = average;
      const OddRank rank(std::move(world), options);
      for (int step = 0; step < kSteps; ++step) {
        rank.train(step);
        if (step + 1 < average.start_step) continue;
        Engine::AverageScope scope = rank.engine->begin_average();
        const Shown shown = shown_by(*rank.engine);
        scope.end();
        EXPECT_EQ(differences(shown, expected[static_cast<size_t>(step)], 1e-12), "");
      }
    });
  }
}

TEST(AveragesBesideALoopNegativeControl, ADifferenceIsNoticed) {
  const std::vector<Shown> right = plain_averages({.decay = 0.9}, 2, 3);
  for (const WeightAverage wrong : {WeightAverage{.decay = 0.9001}, WeightAverage{},
                                    WeightAverage{.decay = 0.9, .start_step = 2}}) {
    EXPECT_NE(differences(plain_averages(wrong, 2, 3).back(), right.back(), 1e-12), "");
  }
}

// --- Which steps ---

/// Returns the average after `steps` steps, of which those in `bad` have infinite gradients.
Shown average_after(int world, const Options& options, int steps, const std::vector<int>& bad) {
  Shown shown;
  run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
    const OddRank rank(std::move(group), options);
    int good = 0;
    for (int step = 0; step < steps; ++step) {
      const bool is_bad = std::find(bad.begin(), bad.end(), step) != bad.end();
      at::Tensor loss = rank.loss(is_bad ? 0 : good++);
      if (is_bad && rank.world->rank() == 0) loss = loss * std::numeric_limits<double>::infinity();
      loss.backward();
      EXPECT_EQ(rank.engine->step().committed, !is_bad);
    }
    Engine::AverageScope scope = rank.engine->begin_average();
    Shown own = shown_by(*rank.engine);
    scope.end();
    if (rank.world->rank() == 0) shown = std::move(own);
  });
  return shown;
}

TEST(AveragedSteps, SkippedOnesDoNotCount) {
  for (const Configuration& configuration : named_configurations()) {
    Options options = small_options_of(configuration);
    options.on_non_finite = NonFinite::kSkip;
    for (const WeightAverage average :
         {WeightAverage{.decay = 0.9}, WeightAverage{.start_step = 2, .every = 2}}) {
      options.average = average;
      const Shown expected = average_after(2, options, 4, {});
      EXPECT_EQ(bit_differences(average_after(2, options, 6, {0, 3}), expected), "")
          << configuration;
      EXPECT_NE(bit_differences(average_after(2, options, 6, {}), expected), "") << "the control";
    }
  }
}

TEST(AveragedSteps, UpdatesInBackwardAreAveragedInTheStep) {
  for (const Strategy strategy : {Strategy::kZero2, Strategy::kZero3}) {
    for (const int world : {1, 2, 3}) {
      for (const Configuration& configuration :
           {configuration_of(strategy), apart(configuration_of(strategy))}) {
        for (const char* model : {"OddMlp", "UnusedEverywhere", "Branches"}) {
          const Schedule schedule{.name = "", .steps = 4, .bucket_bytes = 1024};
          const Configuration late = averaging(configuration, {.decay = 0.75, .every = 2});
          Configuration early = late;
          early.optimizer_in_backward = true;
          EXPECT_EQ(run_differences(run_averaged(model, at::kFloat, early, world, schedule),
                                    run_averaged(model, at::kFloat, late, world, schedule)),
                    "")
              << configuration << " " << model << " at " << world;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::internal::testing
