#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/tests/faults/trainer.h"

// Gradients that are not finite: no rank applies anything, the culprits are named, and training
// continues as if the step had been skipped.
namespace tessera::internal::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

using Numerics = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, Numerics, ::testing::ValuesIn(settings({1, 2, 3})), setting_name);

using NumericsAmongRanks = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, NumericsAmongRanks, ::testing::ValuesIn(settings({2, 3})),
                         setting_name);

using NumericsOfWholeGradients = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, NumericsOfWholeGradients,
                         ::testing::ValuesIn(settings({2, 3}, &Setting::has_whole_gradients)),
                         setting_name);

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A backward that puts `value` into two elements of second.bias's gradient on `who`.
void spoiled_backward(Trainer& trainer, Who who, float value, int batch) {
  const unsigned hook = trainer.net->second->bias.register_hook([&](const at::Tensor& gradient) {
    at::Tensor changed = gradient.clone();
    if (trainer.is_among(who)) changed.slice(0, 3, 5).fill_(value);
    return changed;
  });
  trainer.backward(batch);
  trainer.net->second->bias.remove_hook(hook);
}

TEST_P(Numerics, CulpritsAreNamed) {
  for (const float value : {kNan, kInfinity, -kInfinity}) {
    for (const Who who : kAnyone) {
      SCOPED_TRACE(::testing::Message() << value << " on " << who);
      const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
        spoiled_backward(trainer, who, value, 0);
        trainer.engine->step();
      });
      Parts parts = {"[step] non-finite gradient: ",
                     "Nothing was applied; engine->zero_grad() drops these gradients."};
      for (int rank = 0; rank < size(); ++rank) {
        if (!is_among(who, rank, size())) continue;
        parts.push_back(absl::StrCat("rank ", rank,
                                     " produced 2 NaN or infinite elements, first in "
                                     "'second.bias'"));
      }
      EXPECT_THAT(outcomes, every_rank_refuses(parts));
      if (who == Who::kLastRank && size() > 1) {
        EXPECT_THAT(outcomes[0].text, Not(HasSubstr("rank 0 produced")));
      }
    }
  }
}

/// The hash of the parameters after training with or without a refused step.
uint64_t hash_after_training(Trainer& trainer, Who who, bool with_refused_step) {
  trainer.train(0);
  if (with_refused_step) {
    const uint64_t before = parameter_hash(*trainer.engine);
    spoiled_backward(trainer, who, kNan, 1);
    EXPECT_THAT(outcome_of([&] { trainer.engine->step(); }), is_misuse("non-finite gradient"));
    EXPECT_EQ(parameter_hash(*trainer.engine), before);
    trainer.engine->zero_grad();
  }
  trainer.train(2);
  EXPECT_EQ(trainer.train(3).step, 3);
  return parameter_hash(*trainer.engine);
}

TEST_P(Numerics, TrainingGoesOnAsIfTheStepHadBeenSkipped) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    std::vector<uint64_t> hashes;
    for (const bool with_refused_step : {false, true}) {
      // All ranks take rank 0's values, so with one seed both runs start alike.
      torch::manual_seed(7);
      const auto start = std::make_shared<FaultNet>();
      uint64_t hash = 0;
      const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
        trainer.engine->modify_parameters(0, [&] {
          const auto values = start->parameters();
          const auto mine = trainer.net->parameters();
          for (size_t i = 0; i < mine.size(); ++i) mine[i].copy_(values[i]);
        });
        const uint64_t own = hash_after_training(trainer, who, with_refused_step);
        if (trainer.world->rank() == 0) hash = own;
      });
      EXPECT_THAT(outcomes, Each(is_fine()));
      hashes.push_back(hash);
    }
    EXPECT_EQ(hashes[0], hashes[1]);
  }
}

// Negative control: without zero_grad() the gradients stay, and the next step is refused too.
TEST_P(Numerics, GradientsStayUntilTheyAreDropped) {
  const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
    spoiled_backward(trainer, Who::kLastRank, kNan, 0);
    EXPECT_THAT(outcome_of([&] { trainer.engine->step(); }), is_misuse("non-finite gradient"));
    trainer.backward(1);
    trainer.engine->step();
  });
  EXPECT_THAT(outcomes, every_rank_refuses({absl::StrCat("rank ", size() - 1, " produced 2 NaN")}));
}

TEST_P(Numerics, NanInAnEarlierMicroStep) {
  for (const bool keeps_local : {false, true}) {
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      {
        auto scope = std::make_unique<Engine::NoSync>(trainer.engine->no_sync());
        if (!keeps_local) scope.reset();
        spoiled_backward(trainer, Who::kLastRank, kNan, 0);
      }
      trainer.train(1);
    });
    EXPECT_THAT(outcomes, every_rank_refuses({absl::StrCat("rank ", size() - 1, " produced 2 NaN"),
                                              "first in 'second.bias'"}));
  }
}

TEST_P(NumericsAmongRanks, OverflowOfTheSum) {
  const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
    spoiled_backward(trainer, Who::kEveryRank, 3e38F, 0);
    const Ending outcome = outcome_of([&] { trainer.engine->step(); });
    EXPECT_THAT(outcome, is_misuse("every rank's gradient is finite, the norm of their mean is "
                                   "not. Nothing was applied; scale the loss down"));
    trainer.engine->zero_grad();
    EXPECT_TRUE(trainer.train(1).committed);
    spoiled_backward(trainer, Who::kEveryRank, 3e38F, 0);
    trainer.engine->step();
  });
  EXPECT_THAT(outcomes, every_rank_refuses({"[step] non-finite gradient", "scale the loss down"}));
}

// On one rank only, the same values have a finite mean.
TEST_P(Numerics, LargeGradientsAreNoError) {
  const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
    spoiled_backward(trainer, Who::kLastRank, 3e38F, 0);
    EXPECT_TRUE(std::isfinite(trainer.engine->step().grad_norm));
  });
  EXPECT_THAT(outcomes, Each(is_fine()));
}

// Whole gradients may be edited if all ranks do it.
TEST_P(NumericsOfWholeGradients, EditedGradients) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.backward(0);
      if (trainer.is_among(who)) trainer.net->scale.mutable_grad().mul_(0.5);
      trainer.backward(1);
      trainer.engine->step();
    });
    if (who == Who::kEveryRank) {
      EXPECT_THAT(outcomes, Each(is_fine()));
    } else {
      EXPECT_THAT(outcomes,
                  every_rank_refuses({"[step] how often .grad was written in place since backward "
                                      "differs: rank 0 has ",
                                      "edit gradients alike on all ranks"}));
    }
  }
}

TEST_P(NumericsAmongRanks, LearningRateOnOneRank) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.train(0);
      const auto set_rate = [&](double rate) {
        for (auto& group : trainer.engine->optimizer().param_groups()) {
          group.options().set_lr(rate);
        }
      };
      trainer.backward(1);
      if (trainer.is_among(who)) set_rate(0.010000000000000002);
      const std::string text =
          who == Who::kFirstRank
              ? "rank 0 has 0.010000000000000002, rank 1 has 0.01;"
              : absl::StrCat("rank 0 has 0.01, rank ", size() - 1, " has 0.010000000000000002;");
      const Ending outcome = outcome_of([&] { trainer.engine->step(); });
      EXPECT_THAT(outcome, is_misuse("[step] hyper-parameter defaults: lr differs: " + text +
                                     " set it alike on all ranks. Nothing was applied."));
      set_rate(0.02);  // now equal, so the same gradients are applied
      EXPECT_EQ(trainer.engine->step().step, 2);
      if (trainer.is_among(who)) set_rate(0.03);
      trainer.train(2);
    });
    EXPECT_THAT(outcomes, every_rank_refuses({"hyper-parameter defaults: lr differs"}));
  }
}

TEST_P(Numerics, HyperParameterOutOfRange) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.backward(0);
      if (trainer.is_among(who)) {
        trainer.engine->optimizer().param_groups()[0].options().set_lr(std::nan(""));
      }
      trainer.engine->step();
    });
    EXPECT_THAT(outcomes, every_rank_refuses({"[step] " + refusers(who, size()) +
                                              ": [optim] defaults: lr: got nan, expected a finite "
                                              "number, at least 0"}));
  }
}

TEST_P(Numerics, ForeignParametersInTheOptimizer) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.backward(0);
      if (trainer.is_among(who)) {
        trainer.engine->optimizer().param_groups()[0].params()[0] = torch::ones({3});
      }
      trainer.engine->step();
    });
    EXPECT_THAT(outcomes,
                every_rank_refuses({"[step] " + refusers(who, size()) +
                                    ": [optim] defaults: got a foreign list of parameters"}));
  }
}

}  // namespace
}  // namespace tessera::internal::testing
