#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/eight_bit_options.h"
#include "tessera/lamb_options.h"
#include "tessera/lion_options.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/muon_plan.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/support/own_optimizer.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/same_bits.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/zero/engine/engine_fixture.h"
#include "tessera/tests/zero/engine/thawed_rank.h"

// Engine::set_trainable(): parameters that stay keep their bits, new ones start anew, nothing else
// remains.
namespace tessera::internal::testing {
namespace {

/// Other parameters in each phase; all in the first phase and every fourth.
bool trains_in(int phase, std::string_view name) {
  const int sum = std::accumulate(name.begin(), name.end(), 0);
  return phase % 4 == 0 || (sum + phase) % 3 != 0;
}

ParameterPredicate of_phase(int phase) {
  return [phase](std::string_view name) { return trains_in(phase, name); };
}

const Schedule& changing() {
  static const Schedule schedule = {.name = "Changing",
                                    .steps = 6,
                                    .micro_steps = 2,
                                    .max_grad_norm = 0.05,
                                    .bucket_bytes = 1024};
  return schedule;
}

Outcome train_changing(const std::string& model, at::ScalarType dtype,
                       const Configuration& configuration, int world) {
  const auto change = [](Engine& engine, int step) { engine.set_trainable(of_phase(step + 1)); };
  return train_on_threads(subject(model), dtype, configuration, changing(), world,
                          {.after_step = change});
}

/// LibTorch's AdamW, with the states of frozen parameters dropped.
std::map<std::string, at::Tensor> plain_changing(const std::string& name, int size) {
  const Subject& model = subject(name);
  const std::shared_ptr<Net> net = prepare(model.make(), at::kDouble, kModelSeed);
  torch::optim::AdamW optimizer = plain_optimizer(*net, make_plan(*net));
  const std::vector<at::Tensor> parameters = distinct_parameters(*net);
  for (int step = 0; step < changing().steps; ++step) {
    optimizer.zero_grad();
    for (const auto& entry : net->named_parameters()) {
      const bool trains = trains_in(step, entry.key());
      entry.value().set_requires_grad(trains);
      if (!trains) optimizer.state().erase(entry.value().unsafeGetTensorImpl());
    }
    for (int micro = 0; micro < changing().micro_steps; ++micro) {
      for (int rank = 0; rank < size; ++rank) {
        const Moment moment{.step = step, .rank = rank};
        const Batch batch = batch_of(model, at::kDouble, changing(), moment, micro);
        (loss_of(*net, batch, moment, changing()) / static_cast<double>(size)).backward();
      }
    }
    torch::nn::utils::clip_grad_norm_(parameters, changing().max_grad_norm);
    optimizer.step();
  }
  return copy_parameters(*net);
}

class SetTrainable : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(World, SetTrainable, ::testing::ValuesIn(spanning_worlds()));

TEST_P(SetTrainable, HasTheBitsOfDdpUnderEveryConfiguration) {
  for (const char* model : {"OddMlp", "FrozenBlocks", "MixedDtypes"}) {
    const Outcome expected =
        train_changing(model, at::kFloat, configuration_of(Strategy::kDdp), world());
    for (const Configuration& configuration : spanning_configurations(world())) {
      if (!configuration.keeps_bits()) continue;
      EXPECT_EQ(
          bit_differences(train_changing(model, at::kFloat, configuration, world()), expected), "")
          << configuration << " " << model;
    }
  }
}

TEST_P(SetTrainable, TrainsLikeLibTorchWhoseParametersAreFrozenAndUnfrozen) {
  for (const char* model : {"OddMlp", "TinyAndScalar", "ChannelsLast"}) {
    const auto expected = plain_changing(model, world());
    for (const Configuration& configuration : named_and_apart_configurations()) {
      const Outcome got = train_changing(model, at::kDouble, configuration, world());
      EXPECT_EQ(differences(got.parameters, expected, subject(model).tolerance), "")
          << configuration << " " << model;
    }
  }
}

TEST(SetTrainableControl, AnotherChangeWouldBeSeen) {
  const auto expected = plain_changing("OddMlp", 2);
  const Outcome got = train_on_threads(subject("OddMlp"), at::kDouble,
                                       configuration_of(Strategy::kZero2), changing(), 2);
  EXPECT_NE(differences(got.parameters, expected, 1e-12), "");
}

/// The parameter of "optimizer.<parameter>.<state>".
std::string parameter_in(const std::string& name) { return name.substr(10, name.rfind('.') - 10); }

/// Describes what is wrong with `after`, the state after set_trainable(next), when `before` was the
/// state: parameters that stay must keep their bits, new states must be zero or their initial
/// value, and frozen ones must have none. "" if all is right.
std::string misfits(const StateDict& before, const StateDict& after,
                    const ParameterPredicate& next) {
  std::string found;
  const auto complain = [&found](const std::string& name, const char* what) {
    found += name + ": " + what + "\n";
  };
  for (const auto& [name, entry] : after.entries) {
    const auto old = before.entries.find(name);
    if (old != before.entries.end()) {
      if (!have_same_bits(entry.tensor(), old->second.tensor())) complain(name, "other bits");
      continue;
    }
    const std::string of = parameter_in(name);
    const at::Tensor value = after.entries.at("model." + of).tensor();
    const bool is_value = name.ends_with(".master") || name.ends_with(".average");
    const at::Tensor expected = is_value ? value.to(entry.dtype) : at::zeros_like(entry.tensor());
    if (!have_same_bits(entry.tensor(), expected)) complain(name, "is new, has other bits");
  }
  for (const auto& [name, entry] : before.entries) {
    if (after.entries.contains(name)) continue;
    const std::string of = parameter_in(name);
    if (!name.starts_with("optimizer.") || next(of, {})) complain(name, "is lost");
  }
  for (const auto& [name, entry] : after.entries) {
    if (!name.starts_with("optimizer.") || !name.ends_with(".step")) continue;
    if (!next(name.substr(10, name.size() - 15), {})) complain(name, "is frozen");
  }
  return found;
}

class SetTrainableEngine : public EngineTest {
 protected:
  /// Expects that a run that changes its trained parameters equals a fresh run that loads its
  /// state.
  void expect_a_fresh_engine(const std::string& model, const Configuration& configuration) const {
    SCOPED_TRACE(::testing::Message() << model << " " << configuration);
    run_ranks(size(), [&](const std::shared_ptr<ProcessGroup>& group) {
      const ThawedRank run(group, model, configuration, of_phase(1));
      run.train(0, 2);
      const StateDict before = run.state();
      const auto next = of_phase(2);
      EXPECT_TRUE(run.engine->set_trainable(next).entries.empty());
      const StateDict after = run.state();
      EXPECT_EQ(misfits(before, after, next), "");

      const ThawedRank fresh(group, model, configuration, next, 77);
      fresh.engine->load_state_dict(after);
      run.train(2, 4);
      fresh.train(2, 4);
      EXPECT_EQ(bit_differences(run.state(), fresh.state()), "");
      EXPECT_EQ(run.engine->steps(), 4);
      EXPECT_EQ(run.engine->memory().now().by_class, fresh.engine->memory().now().by_class);
      const MemoryBytes predicted = predicted_memory(*run.engine, 1);
      for (const MemoryClass memory_class :
           {MemoryClass::kParameters, MemoryClass::kGradients, MemoryClass::kOptimizer,
            MemoryClass::kUnshardedParameters, MemoryClass::kRoot, MemoryClass::kHost}) {
        EXPECT_EQ(run.engine->memory().now()[memory_class], predicted[memory_class])
            << to_string(memory_class);
      }
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Configurations, SetTrainableEngine, configurations_and_worlds(), name_of);

TEST_P(SetTrainableEngine, IsAFreshEngineThatLoadsTheState) {
  expect_a_fresh_engine("OddMlp", configuration());
  expect_a_fresh_engine("FrozenBlocks", configuration());
}

TEST_P(SetTrainableEngine, WithMastersLossScaleAndAverage) {
  Configuration bf16 = configuration();
  bf16.precision.parameters = at::kBFloat16;
  bf16.average = WeightAverage{.decay = 0.9};
  expect_a_fresh_engine("OddMlp", bf16);
}

/// States of every kind are kept, and new ones start with their algorithm's initial values.
TEST(SetTrainableAlgorithms, OfAllKindsGoOn) {
  const auto is_vector = [](std::string_view name) { return name.ends_with("bias"); };
  using namespace torch::optim;
  const std::vector<OptimizerPlan> plans = {
      AdamWOptions(0.02).amsgrad(true),
      AdamOptions(0.02).weight_decay(0.1),
      {SGDOptions(0.1), {{"bias", is_vector, SGDOptions(0.1).momentum(0.9)}}},
      LionOptions(0.01),
      AdagradOptions(0.1).initial_accumulator_value(0.25).lr_decay(0.1),
      RMSpropOptions(0.01).momentum(0.8).centered(true),
      {elementwise<Own<Belief>>(OwnOptions()),
       {{"bias", is_vector, SGDOptions(0.1).momentum(0.9)}}},
      muon_and(AdamW8bitOptions(0.02), MuonOptions(0.02)),
      {Lion8bitOptions(0.01), {{"bias", is_vector, LambOptions(0.02)}}}};
  for (const OptimizerPlan& plan : plans) {
    for (const Strategy strategy : {Strategy::kZero1, Strategy::kZero3}) {
      run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& group) {
        const Configuration configuration = configuration_of(strategy);
        const ThawedRank run(group, "OddMlp", configuration, of_phase(1), 3, plan);
        run.train(0, 2);
        run.engine->set_trainable(of_phase(2));
        const ThawedRank fresh(group, "OddMlp", configuration, of_phase(2), 77, plan);
        EXPECT_EQ(fresh.engine->memory().now().by_class, run.engine->memory().now().by_class);
        const StateDict begun = fresh.state();
        const StateDict state = run.state();
        for (const auto& [name, entry] : state.entries) {
          const bool is_new =
              name.starts_with("optimizer.layer") && !trains_in(1, parameter_in(name));
          if (!is_new) continue;
          EXPECT_TRUE(have_same_bits(entry.tensor(), begun.entries.at(name).tensor())) << name;
        }
        fresh.engine->load_state_dict(state);
        run.train(2, 4);
        fresh.train(2, 4);
        EXPECT_EQ(bit_differences(run.state(), fresh.state()), "");
      });
    }
  }
}

TEST_P(SetTrainableEngine, UpdatesInBackward) {
  Configuration configuration = this->configuration();
  configuration.optimizer_in_backward = true;
  const Degrees degrees = configuration.degrees_at(size());
  if (degrees.gradients != size() || degrees.optimizer != size()) return;
  if (configuration.strategy == Strategy::kDdp || configuration.strategy == Strategy::kZero1)
    return;
  expect_a_fresh_engine("OddMlp", configuration);
}

/// The peak stated in the header: in addition to the engine's old or new memory, 1/N of the state.
TEST_P(SetTrainableEngine, TakesNoMoreThanItsShareOfTheState) {
  run_ranks(size(), [&](const std::shared_ptr<ProcessGroup>& group) {
    const ThawedRank run(group, "DeepMlp", configuration(), all_train);
    run.train(0, 2);
    const MemoryBytes before = run.engine->memory().now();
    const int64_t parameter_bytes = run.engine->units().bytes();
    run.engine->set_trainable([](std::string_view name) { return name.starts_with("layer0"); });
    run.train(2, 3);
    const MemoryBytes after = run.engine->memory().now();
    EXPECT_LT(after[MemoryClass::kOptimizer], before[MemoryClass::kOptimizer]);
    // Per parameter its value or, for the few that are trained, two moments; and counts.
    const int64_t share_bytes = (splits_parameters() ? 3 : 2) * parameter_bytes / size() + 512;
    const int64_t twice = splits_parameters() ? 0 : parameter_bytes;
    EXPECT_LE(run.engine->memory().peak_total_bytes(),
              std::max(before.total(), after.total() + twice) + share_bytes);
  });
}

TEST_P(SetTrainableEngine, AReturnedStateGoesBack) {
  for (const bool is_narrow : {false, true}) {
    Configuration configuration = this->configuration();
    if (is_narrow) configuration.precision.parameters = at::kBFloat16;
    run_ranks(size(), [&](const std::shared_ptr<ProcessGroup>& group) {
      const ThawedRank run(group, "OddMlp", configuration, all_train);
      run.train(0, 2);
      const StateDict before = run.state();
      const StateDict left = run.engine->set_trainable(of_phase(1), FrozenState::kReturned);
      for (const auto& [name, entry] : left.entries) {
        EXPECT_TRUE(name.starts_with("optimizer.layer")) << name;
      }
      run.engine->set_trainable(all_train);
      EXPECT_NE(bit_differences(run.state(), before), "");
      run.engine->load_state_dict(left, {.may_lack = all_train});
      EXPECT_EQ(bit_differences(run.state(), before), "");
      run.train(2, 3);
    });
  }
}

TEST_P(SetTrainableEngine, ReferencesAndSchedulersGoOn) {
  on_ranks([&](Rank& rank) {
    const torch::optim::Optimizer* const optimizer = &rank.engine->optimizer();
    const ParameterTable& table = rank.engine->parameters();
    const UnitPlan& units = rank.engine->units();
    const MemoryMeter& memory = rank.engine->memory();
    ProcessGroup& group = rank.engine->group();
    torch::optim::StepLR schedule(rank.engine->optimizer(), 1, 0.5);
    const at::Tensor view = rank.net->named_parameters()["layer0.weight"].detach();
    for (int step = 0; step < 3; ++step) {
      rank.train(step);
      schedule.step();
      rank.engine->set_trainable(
          [step](std::string_view name) { return name.starts_with("layer0") == (step == 1); });
    }
    EXPECT_EQ(&rank.engine->optimizer(), optimizer);
    EXPECT_EQ(&rank.engine->parameters(), &table);
    EXPECT_FALSE(table[0].is_trainable);
    EXPECT_EQ(&rank.engine->units(), &units);
    EXPECT_EQ(&rank.engine->memory(), &memory);
    EXPECT_EQ(&rank.engine->group(), &group);
    auto& groups = rank.engine->optimizer().param_groups();
    ASSERT_EQ(groups.size(), 1U);
    EXPECT_EQ(groups[0].params().size(), 4U);
    EXPECT_EQ(groups[0].options().get_lr(), 0.02 / 4);  // the first step() has no effect
    EXPECT_TRUE(at::equal(view, rank.net->named_parameters()["layer0.weight"]));
    const auto whole = rank.engine->full_parameters();
    EXPECT_TRUE(have_same_bits(view, rank.net->named_parameters()["layer0.weight"]));
  });
}

}  // namespace
}  // namespace tessera::internal::testing
