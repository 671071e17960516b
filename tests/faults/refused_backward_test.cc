#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/process_group.h"
#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/tests/faults/trainer.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/given_gradients.h"

// A backward that all ranks refuse because they differ in what they reduced or dropped. After it
// step() refuses too, on all ranks and every time, until the gradients are dropped; then training
// continues as if that backward had not run.
namespace tessera::internal::testing {
namespace {

using ::testing::Each;

std::vector<Setting> settings_that_refuse() {
  std::vector<Setting> all = settings({2, 3});
  for (const Configuration& configuration : apart_configurations()) {
    for (const int size : {2, 3}) all.push_back({configuration, size});
  }
  all.push_back({hybrid(1, 2, 4), 4});  // keeps partial sums
  for (Setting& setting : all) setting.configuration.average = WeightAverage{.decay = 0.5};
  return all;
}

using RefusedBackward = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, RefusedBackward, ::testing::ValuesIn(settings_that_refuse()),
                         setting_name);

/// How gradients of a batch arrive.
using Pass = void (*)(const Trainer&, int batch);

void by_backward(const Trainer& trainer, int batch) { trainer.backward(batch); }
void by_accumulate(const Trainer& trainer, int batch) {
  trainer.engine->accumulate(gradients_of(*trainer.engine, trainer.loss(batch)));
}

void add_locally(const Trainer& trainer, Pass pass, int batch) {
  const auto scope = trainer.engine->no_sync();
  pass(trainer, batch);
}

bool is_first(const Trainer& trainer) { return trainer.is_among(Who::kFirstRank); }
bool is_last(const Trainer& trainer) { return trainer.is_among(Who::kLastRank); }

/// Something that one rank does alone, and the error on all ranks.
struct Discrepancy {
  const char* name;
  void (*make)(const Trainer&, Pass);
};

constexpr Discrepancy kDiscrepancies[] = {
    {"all but the first rank add locally",
     [](const Trainer& trainer, Pass pass) {
       if (!is_first(trainer)) add_locally(trainer, pass, 1);
       pass(trainer, 2);
     }},
    {"the first rank adds locally",
     [](const Trainer& trainer, Pass pass) {
       if (is_first(trainer)) add_locally(trainer, pass, 1);
       pass(trainer, 2);
     }},
    {"the last rank drops all gradients",
     [](const Trainer& trainer, Pass pass) {
       pass(trainer, 1);
       if (is_last(trainer)) trainer.engine->zero_grad();
       pass(trainer, 2);
     }},
    {"the last rank drops one gradient",
     [](const Trainer& trainer, Pass pass) {
       pass(trainer, 1);
       if (is_last(trainer)) trainer.net->scale.mutable_grad().reset();
       pass(trainer, 2);
     }},
};

/// Cases in which the last rank reduces in step() while the others do in backward.
constexpr Discrepancy kDiscrepanciesOverStep[] = {
    {"the last rank adds locally and steps",
     [](const Trainer& trainer, Pass pass) {
       if (!is_last(trainer)) return pass(trainer, 1);
       add_locally(trainer, pass, 1);
       trainer.engine->step();
     }},
    {"the last rank has no gradients and steps",
     [](const Trainer& trainer, Pass pass) {
       if (!is_last(trainer)) {
         add_locally(trainer, pass, 1);
         return pass(trainer, 2);
       }
       torch::ones({1}, torch::requires_grad()).sum().backward();
       trainer.engine->step();
     }},
};

Options refusing_options(const Configuration& configuration) {
  Options options = small_options_of(configuration);
  if (!configuration.optimizer_in_backward) options.max_grad_norm = 0.05;
  return options;
}

constexpr const char* kRanksDiffer =
    "differ in what they reduced or dropped before the end of this";

/// Expects that all ranks refuse two attempts with one text, which contains `remedy`.
void expect_refused_steps(const Trainer& trainer,
                          const char* remedy = "zero_grad() on all ranks lets training go on") {
  std::string first;
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Ending refused = outcome_of([&] { trainer.engine->step(); });
    EXPECT_THAT(refused, is_misuse(remedy));
    if (attempt == 0) first = refused.text;
    EXPECT_THAT(trainer.world->all_gather_bytes(refused.text, "refusal"), Each(first));
  }
}

/// Trains both in the same way; they must end with the same bits.
void expect_same_training(const Trainer& trainer, const Trainer& clean, bool adds_locally = true) {
  for (int step = 1; step < 3; ++step) {
    double norms[2];
    for (const Trainer* each : {&trainer, &clean}) {
      if (adds_locally) add_locally(*each, by_backward, 10 * step);
      each->backward(10 * step + 1);
      if (adds_locally) each->backward(10 * step + 2);
      const StepResult result = each->engine->step();
      EXPECT_TRUE(result.committed);
      EXPECT_EQ(result.step, step + 1);
      norms[each == &clean ? 1 : 0] = result.grad_norm;
    }
    EXPECT_EQ(norms[0], norms[1]) << "step " << step;
  }
  const auto expect_same_values = [&](const char* what) {
    EXPECT_EQ(bit_differences(copy_parameters(*trainer.net), copy_parameters(*clean.net)), "")
        << what;
  };
  expect_same_values("parameters");
  const auto average = trainer.engine->begin_average();
  const auto average_of_clean = clean.engine->begin_average();
  expect_same_values("averages");
}

/// Runs `body` with two trainers in the same state, after one step.
void run_two(const Setting& setting, const std::function<void(Trainer&, Trainer&)>& body) {
  const auto train = [&](std::shared_ptr<ProcessGroup> world) {
    const Options options = refusing_options(setting.configuration);
    Trainer trainer(world, options);
    Trainer clean(std::move(world), options);
    trainer.train(0);
    clean.engine->load_state_dict(trainer.engine->state_dict(StateScope::kEveryRank));
    body(trainer, clean);
  };
  EXPECT_THAT(outcomes_of_ranks(setting.size, train, setting.lane), Each(is_fine()));
}

void refuse_and_go_on(const Setting& setting, const Discrepancy& discrepancy, Pass pass) {
  SCOPED_TRACE(discrepancy.name);
  run_two(setting, [&](Trainer& trainer, Trainer& clean) {
    EXPECT_THAT(outcome_of([&] { discrepancy.make(trainer, pass); }), is_misuse(kRanksDiffer));
    expect_refused_steps(trainer);
    if (is_last(trainer)) add_locally(trainer, pass, 3);
    expect_refused_steps(trainer);
    EXPECT_THAT(outcome_of([&] { pass(trainer, 4); }), is_misuse(kRanksDiffer));
    expect_refused_steps(trainer);
    add_locally(trainer, pass, 5);
    expect_refused_steps(trainer);
    if (is_last(trainer)) trainer.engine->zero_grad();
    expect_refused_steps(trainer, "[step] rank ");  // that rank has no gradients now
    trainer.engine->zero_grad();
    expect_same_training(trainer, clean);
  });
}

TEST_P(RefusedBackward, IsRefusedByEachStepUntilZeroGrad) {
  for (const Discrepancy& discrepancy : kDiscrepancies)
    refuse_and_go_on(GetParam(), discrepancy, by_backward);
  for (const Discrepancy& discrepancy : kDiscrepanciesOverStep)
    refuse_and_go_on(GetParam(), discrepancy, by_backward);
}

TEST_P(RefusedBackward, OfGivenGradientsIsRefusedByEachStepUntilZeroGrad) {
  for (const Discrepancy& discrepancy : kDiscrepancies)
    refuse_and_go_on(GetParam(), discrepancy, by_accumulate);
}

TEST_P(RefusedBackward, LeavesGradientsThatAnOptimizersZeroGradDrops) {
  const auto drop_and_go_on = [&](const Discrepancy& discrepancy) {
    SCOPED_TRACE(discrepancy.name);
    run_two(GetParam(), [&](Trainer& trainer, Trainer& clean) {
      EXPECT_THAT(outcome_of([&] { discrepancy.make(trainer, by_backward); }),
                  is_misuse(kRanksDiffer));
      trainer.engine->optimizer().zero_grad();
      expect_same_training(trainer, clean);
    });
  };
  for (const Discrepancy& discrepancy : kDiscrepancies) drop_and_go_on(discrepancy);
  for (const Discrepancy& discrepancy : kDiscrepanciesOverStep) drop_and_go_on(discrepancy);
}

// Negative control: what all ranks do alike is not refused.
TEST_P(RefusedBackward, IsNoneWhereRanksAreAlike) {
  run_two(GetParam(), [](Trainer& trainer, Trainer& clean) {
    add_locally(trainer, by_accumulate, 1);
    trainer.backward(2);
    trainer.engine->zero_grad();
    expect_same_training(trainer, clean);
  });
}

TEST_P(RefusedBackward, BesideAStepOfOneRankLosesContact) {
  const auto outcomes = train_ranks(GetParam(), [](Trainer& trainer) {
    EXPECT_THAT(outcome_of([&] { kDiscrepancies[0].make(trainer, by_backward); }),
                is_misuse(kRanksDiffer));
    if (is_last(trainer)) trainer.engine->step();
    trainer.backward(3);
  });
  EXPECT_THAT(outcomes, every_rank_loses_contact({" called ", "where rank"}));
}

std::vector<Setting> settings_that_update_in_backward() {
  std::vector<Setting> all;
  for (const Strategy strategy : {Strategy::kZero2, Strategy::kZero3}) {
    for (Configuration configuration :
         {configuration_of(strategy), apart(configuration_of(strategy))}) {
      configuration.optimizer_in_backward = true;
      configuration.average = WeightAverage{.decay = 0.5};
      for (const int size : {2, 3}) all.push_back({configuration, size});
    }
  }
  return all;
}

using RefusedUpdate = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, RefusedUpdate,
                         ::testing::ValuesIn(settings_that_update_in_backward()), setting_name);

void refuse_update_and_go_on(const Setting& setting, Pass pass,
                             const std::function<void(Trainer&)>& between) {
  run_two(setting, [&](Trainer& trainer, Trainer& clean) {
    const Ending refused =
        outcome_of([&] { is_first(trainer) ? pass(trainer, 1) : add_locally(trainer, pass, 1); });
    EXPECT_THAT(refused, is_misuse("backward was called inside no_sync()"));
    between(trainer);
    expect_same_training(trainer, clean, /*adds_locally=*/false);
  });
}

// It is refused before there are gradients.
TEST_P(RefusedUpdate, LeavesNothing) {
  const auto step = [](const Trainer& trainer) {
    expect_refused_steps(trainer, "called step() without a backward since the last step");
  };
  const auto drop = [](const Trainer& trainer) { trainer.engine->zero_grad(); };
  refuse_update_and_go_on(GetParam(), by_backward, step);
  refuse_update_and_go_on(GetParam(), by_backward, [&](const Trainer& trainer) {
    step(trainer);
    drop(trainer);
  });
  for (const Pass pass : {by_backward, by_accumulate}) {
    refuse_update_and_go_on(GetParam(), pass, [](const Trainer&) {});
    refuse_update_and_go_on(GetParam(), pass, drop);
  }
}

}  // namespace
}  // namespace tessera::internal::testing
