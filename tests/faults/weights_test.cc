#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
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
#include "tessera/tests/support/training.h"

// Weights of backward passes that are invalid, missing for some losses of a step, or 0: all ranks
// refuse them together, and training continues after zero_grad().
namespace tessera::internal::testing {
namespace {

using ::testing::Each;

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

std::vector<Setting> settings_with_weights() {
  std::vector<Setting> all = settings({1, 2, 3});
  all.push_back({hybrid(1, 2, 4), 4});  // keeps partial sums
  return all;
}

using Weights = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, Weights, ::testing::ValuesIn(settings_with_weights()),
                         setting_name);

void weigh(const Trainer& trainer, int batch, std::optional<double> weight) {
  trainer.engine->backward(trainer.loss(batch), {.weight = weight});
}

/// Runs `body` with two trainers in the same state; `adjust` changes their options.
void run_weighing(const Setting& setting, const std::function<void(Trainer&, Trainer&)>& body,
                  const std::function<void(Options&)>& adjust = {}) {
  const auto train = [&](std::shared_ptr<ProcessGroup> world) {
    Options options = small_options_of(setting.configuration);
    if (adjust) adjust(options);
    Trainer trainer(world, options);
    Trainer clean(std::move(world), options);
    clean.engine->load_state_dict(trainer.engine->state_dict(StateScope::kEveryRank));
    body(trainer, clean);
  };
  EXPECT_THAT(outcomes_of_ranks(setting.size, train, setting.lane), Each(is_fine()));
}

/// Expects `what` on all ranks from `call` and from two steps after it, until gradients are
/// dropped.
void expect_refused(const Trainer& trainer, const std::string& what,
                    const std::function<void()>& call) {
  const Ending refused = outcome_of(call);
  EXPECT_THAT(refused, is_misuse(what));
  EXPECT_THAT(trainer.world->all_gather_bytes(refused.text, "refusal"), Each(refused.text));
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT(outcome_of([&] { trainer.engine->step(); }), is_misuse("backward: got "));
  }
  trainer.engine->zero_grad();
}

void expect_same_weighted_training(const Trainer& trainer, const Trainer& clean) {
  for (int step = 0; step < 2; ++step) {
    for (const Trainer* each : {&trainer, &clean}) {
      weigh(*each, step, 1 + each->world->rank());
      weigh(*each, step + 5, 2);
    }
    const StepResult result = trainer.engine->step();
    EXPECT_EQ(result.grad_norm, clean.engine->step().grad_norm);
    const int size = trainer.world->size();
    EXPECT_EQ(result.weight, size * (size + 1) / 2 + 2 * size);
  }
  EXPECT_EQ(bit_differences(copy_parameters(*trainer.net), copy_parameters(*clean.net)), "");
}

TEST_P(Weights, ThatAreNoneAreRefusedOnAllRanks) {
  run_weighing(GetParam(), [&](Trainer& trainer, Trainer& clean) {
    for (const double wrong : {-1.0, kNoNumber, std::numeric_limits<double>::infinity(), 1e300}) {
      for (const Who who : kAnyone) {
        const std::optional<double> weight = trainer.is_among(who) ? wrong : 2.0;
        const std::string text =
            absl::StrCat("[grad] ", refusers(who, size()), ": backward: got weight ");
        expect_refused(trainer, text, [&] { weigh(trainer, 1, weight); });
      }
    }
    expect_same_weighted_training(trainer, clean);
  });
}

TEST_P(Weights, OfGivenGradientsAreRefusedWithNothingAdded) {
  run_weighing(GetParam(), [&](Trainer& trainer, Trainer& clean) {
    for (const Trainer* each : {&trainer, &clean}) weigh(*each, 0, 3);
    const double weight = trainer.is_among(Who::kLastRank) ? -1.0 : 2.0;
    EXPECT_THAT(outcome_of([&] {
                  trainer.engine->accumulate(gradients_of(*trainer.engine, trainer.loss(1)),
                                             weight);
                }),
                is_misuse("[accumulate] " + refusers(Who::kLastRank, size()) +
                          ": backward: got weight -1"));
    EXPECT_EQ(trainer.engine->step().grad_norm, clean.engine->step().grad_norm);
    expect_same_weighted_training(trainer, clean);
  });
}

TEST_P(Weights, OfSomeLossesOfAStepAreRefusedOnAllRanks) {
  run_weighing(GetParam(), [&](Trainer& trainer, Trainer& clean) {
    expect_refused(trainer, "got a loss without a weight in a step that has others with;", [&] {
      weigh(trainer, 1, 2);
      trainer.backward(2);
    });
    expect_refused(trainer, "got a loss with a weight in a step that has others without;", [&] {
      trainer.backward(1);
      weigh(trainer, 2, 2);
    });
    expect_refused(trainer, "got a loss with a weight in a step that has others without", [&] {
      {
        const auto scope = trainer.engine->no_sync();
        weigh(trainer, 1, std::nullopt);
        weigh(trainer, 2, 2);
      }
      weigh(trainer, 3, 2);
    });
    if (size() > 1) {
      expect_refused(trainer,
                     absl::StrCat("got losses with and without a weight in one step (with one on "
                                  "rank 0, without on rank ",
                                  size() - 1, ")"),
                     [&] {
                       if (trainer.is_among(Who::kLastRank)) return trainer.backward(1);
                       weigh(trainer, 1, 2);
                     });
    }
    expect_same_weighted_training(trainer, clean);
  });
}

TEST_P(Weights, ThatAreNoneInsideNoSyncAreRefusedThereWithNothingAdded) {
  run_weighing(GetParam(), [&](Trainer& trainer, Trainer& clean) {
    for (const Trainer* each : {&trainer, &clean}) {
      const auto scope = each->engine->no_sync();
      if (each == &trainer && trainer.is_among(Who::kLastRank)) {
        EXPECT_THAT(outcome_of([&] { weigh(trainer, 0, -2); }),
                    is_misuse(first_of(Who::kLastRank, size()) + ": backward: got weight -2"));
      }
      weigh(*each, 0, 3);
    }
    EXPECT_EQ(trainer.engine->step().weight, 3 * size());  // this one reduces
    EXPECT_EQ(clean.engine->step().weight, 3 * size());
    expect_same_weighted_training(trainer, clean);
  });
}

TEST_P(Weights, ThatSumUpToZeroAreAnErrorOrASkippedStep) {
  run_weighing(GetParam(), [&](Trainer& trainer, Trainer& clean) {
    weigh(trainer, 1, 0);
    EXPECT_THAT(outcome_of([&] { trainer.engine->step(); }),
                is_misuse("the weights of this step's backwards are 0 on all ranks"));
    weigh(trainer, 1, trainer.is_among(Who::kFirstRank) ? 1 : 0);  // now the step has a weight
    weigh(clean, 1, trainer.is_among(Who::kFirstRank) ? 1 : 0);
    EXPECT_EQ(trainer.engine->step().grad_norm, clean.engine->step().grad_norm);
    expect_same_weighted_training(trainer, clean);
  });
  const auto skip = [](Options& options) { options.loss_scale = LossScale{.initial = 8.0}; };
  run_weighing(
      GetParam(),
      [&](Trainer& trainer, Trainer& clean) {
        weigh(trainer, 1, 0);
        const StepResult result = trainer.engine->step();
        EXPECT_FALSE(result.committed);
        EXPECT_TRUE(std::isnan(result.grad_norm));
        EXPECT_EQ(result.step, 0);
        EXPECT_EQ(trainer.engine->loss_scale(), 8.0);  // the scale is not affected
        expect_same_weighted_training(trainer, clean);
      },
      skip);
}

TEST_P(Weights, OfZeroAddExactZerosWhateverTheGradientsAre) {
  run_weighing(GetParam(), [&](Trainer& trainer, Trainer& clean) {
    const bool is_out = trainer.is_among(Who::kLastRank) && size() > 1;
    for (int step = 0; step < 3; ++step) {
      weigh(clean, step, is_out ? 0 : 2);
      if (!is_out) {
        weigh(trainer, step, 2);
      } else if (step == 0) {
        trainer.engine->backward(trainer.loss(7) * kNoNumber, {.weight = 0});
      } else {  // no loss, or one without a graph
        trainer.engine->backward(step == 1 ? at::Tensor() : torch::ones({}), {.weight = 0});
      }
      EXPECT_EQ(trainer.engine->step().grad_norm, clean.engine->step().grad_norm);
    }
    if (size() > 1) {
      trainer.engine->backward(is_out ? trainer.loss(3) * kNoNumber : trainer.loss(3),
                               {.weight = is_out ? 1e-6 : 2.0});
      EXPECT_THAT(outcome_of([&] { trainer.engine->step(); }), is_misuse("non-finite gradient"));
      trainer.engine->zero_grad();
    }
    expect_same_weighted_training(trainer, clean);
  });
}

TEST_P(Weights, CountWhereALossGivesNoGradients) {
  run_weighing(GetParam(), [&](Trainer& trainer, Trainer& clean) {
    const bool is_out = trainer.is_among(Who::kLastRank) && size() > 1;
    const at::Tensor other = torch::ones({}, torch::requires_grad());
    trainer.engine->backward(is_out ? other * 2 : trainer.loss(0), {.weight = 3});
    clean.engine->backward(is_out ? clean.loss(0) * 0 : clean.loss(0), {.weight = 3});
    const StepResult result = trainer.engine->step();
    EXPECT_EQ(result.weight, 3.0 * size());
    EXPECT_EQ(result.grad_norm, clean.engine->step().grad_norm);
    expect_same_weighted_training(trainer, clean);
  });
}

TEST(WeightsUnderOptions, ThatUseGradientsBeforeAreRefused) {
  for (const Strategy strategy : {Strategy::kZero2, Strategy::kZero3}) {
    Setting setting{configuration_of(strategy), 3};
    setting.configuration.optimizer_in_backward = true;
    EXPECT_THAT(train_ranks(setting, [](Trainer& trainer) { weigh(trainer, 0, 1); }),
                every_rank_refuses({"backward with a weight: got Options::optimizer_in_backward"}));
  }
}

}  // namespace
}  // namespace tessera::internal::testing
