#include <functional>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/tests/faults/trainer.h"

// Optimizers that users make over the model's parameters: refused on all ranks, by the step or, if
// nobody calls it, by the next backward.
namespace tessera::internal::testing {
namespace {

using ::testing::Each;

using ForeignOptimizer = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, ForeignOptimizer, ::testing::ValuesIn(settings({1, 2, 3})),
                         setting_name);

/// Configurations in which a foreign optimizer finds gradients to read.
using ForeignOptimizerOfWholeGradients = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, ForeignOptimizerOfWholeGradients,
                         ::testing::ValuesIn(settings({1, 2, 3}, &Setting::has_whole_gradients)),
                         setting_name);

/// Configurations in which it can write. A write to a split parameter is refused at once
/// (ParameterMisuse).
using ForeignOptimizerOfWholeParameters = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, ForeignOptimizerOfWholeParameters,
                         ::testing::ValuesIn(settings({1, 2, 3}, &Setting::has_whole_parameters)),
                         setting_name);

/// The same with peers.
using ForeignOptimizerAmongRanks = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, ForeignOptimizerAmongRanks,
                         ::testing::ValuesIn(settings({2, 3}, &Setting::has_whole_parameters)),
                         setting_name);

constexpr const char* kScaleWritten =
    "parameter 'scale' was written outside engine->modify_parameters(); write it inside";

// torch::optim::SGD writes through .data(), which no version counter sees.
TEST_P(ForeignOptimizerOfWholeGradients, SgdBeforeTheStep) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      torch::optim::SGD foreign(trainer.net->parameters(), torch::optim::SGDOptions(0.1));
      trainer.backward(0);
      if (trainer.is_among(who)) foreign.step();
      trainer.engine->step();
    });
    EXPECT_THAT(outcomes,
                every_rank_refuses({"[step] " + refusers(who, size()) + ": ", kScaleWritten}));
  }
}

TEST_P(ForeignOptimizerOfWholeParameters, AdamWBeforeTheStep) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      torch::optim::AdamW foreign(trainer.net->parameters(), torch::optim::AdamWOptions(0.1));
      trainer.backward(0);
      if (trainer.is_among(who)) {
        const Ending outcome = outcome_of([&] { foreign.step(); });
        if (has_whole_gradients()) {
          EXPECT_THAT(outcome, is_fine());
        } else {  // it has no gradient to read
          EXPECT_THAT(outcome, is_misuse("[grad] the gradient of 'scale' is sharded"));
        }
      }
      trainer.engine->step();
    });
    // AdamW applies its weight decay before it reads the gradient.
    EXPECT_THAT(outcomes,
                every_rank_refuses({"[step] " + refusers(who, size()) + ": ", kScaleWritten}));
  }
}

/// A training loop that does not use the engine.
void train_behind_its_back(Trainer& trainer, bool steps) {
  torch::optim::SGD foreign(trainer.net->parameters(), torch::optim::SGDOptions(0.1));
  for (int batch = 0; batch < 3; ++batch) {
    foreign.zero_grad();
    trainer.backward(batch);
    if (steps) foreign.step();
  }
}

TEST_P(ForeignOptimizerOfWholeGradients, SgdInTheStepsPlaceIsRefusedByTheNextBackward) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      train_behind_its_back(trainer, trainer.is_among(who));
    });
    EXPECT_THAT(outcomes,
                every_rank_refuses({"[grad] " + refusers(who, size()) + ": ", kScaleWritten}));
  }
}

/// The negative control.
TEST_P(ForeignOptimizer, BackwardsInARowAreFineWithoutIt) {
  const auto outcomes = train_ranks(
      GetParam(), [&](Trainer& trainer) { train_behind_its_back(trainer, /*steps=*/false); });
  EXPECT_THAT(outcomes, Each(is_fine()));
}

// Its weight decay is applied before it reads the missing gradient.
TEST_P(ForeignOptimizerOfWholeParameters, AdamWInTheStepsPlaceIsRefusedByTheNextBackward) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      torch::optim::AdamW foreign(trainer.net->parameters(), torch::optim::AdamWOptions(0.1));
      trainer.backward(0);
      if (trainer.is_among(who)) outcome_of([&] { foreign.step(); });
      trainer.backward(1);
    });
    EXPECT_THAT(outcomes,
                every_rank_refuses({"[grad] " + refusers(who, size()) + ": ", kScaleWritten}));
  }
}

TEST_P(ForeignOptimizerOfWholeParameters, AFrozenParameterThatIsWrittenIsRefusedByTheNextBackward) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.backward(0);
      if (trainer.is_among(who)) trainer.net->frozen.zero_();
      trainer.backward(1);
    });
    EXPECT_THAT(outcomes, every_rank_refuses({"[grad] " + refusers(who, size()) + ": ",
                                              "parameter 'frozen' was written outside",
                                              "make it a buffer by register_buffer()"}));
  }
}

// A backward without communication cannot inform the other ranks; the next one that reduces does.
TEST_P(ForeignOptimizerOfWholeParameters, IsFoundByTheFirstBackwardThatReduces) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.train(0);
      if (trainer.is_among(who)) {
        const at::NoGradGuard no_grad;
        trainer.net->scale.add_(1.0);
      }
      {
        const auto scope = trainer.engine->no_sync();
        EXPECT_THAT(outcome_of([&] { trainer.backward(1); }), is_fine());
      }
      trainer.backward(2);
    });
    EXPECT_THAT(outcomes,
                every_rank_refuses({"[grad] " + refusers(who, size()) + ": ", kScaleWritten}));
  }
}

// Meanwhile peers of a rank whose backward did not reach the model are in step().
TEST_P(ForeignOptimizerAmongRanks, ReachesARankThatIsInTheStep) {
  const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
    trainer.train(0);
    if (trainer.is_among(Who::kFirstRank)) {
      trainer.net->scale.data().add_(1.0);
      trainer.backward(1);
    } else {
      const at::Tensor other = at::ones({}).set_requires_grad(true);
      (other * 2).backward();
    }
    trainer.engine->step();
  });
  EXPECT_THAT(outcomes, every_rank_refuses({"[grad] rank 0: ", kScaleWritten}));
}

// Following the message's advice works, and the gradients of that backward are right.
TEST_P(ForeignOptimizerOfWholeParameters, CanBeMended) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.backward(0);
      if (trainer.is_among(who)) {
        const at::NoGradGuard no_grad;
        trainer.net->second->bias.add_(trainer.world->rank() + 1.0);
      }
      EXPECT_THAT(outcome_of([&] { trainer.backward(1); }),
                  is_misuse("[grad] " + refusers(who, size())));
      EXPECT_THAT(outcome_of([&] { trainer.engine->step(); }),
                  is_misuse("[step] " + refusers(who, size())));
      trainer.engine->modify_parameters(size() - 1, [] {});
      EXPECT_TRUE(trainer.engine->step().committed);
      EXPECT_TRUE(trainer.train(2).committed);
      parameter_hash(*trainer.engine);  // throws if ranks differ
    });
    EXPECT_THAT(outcomes, Each(is_fine()));
  }
}

// Allowed actions between two backward passes.
TEST_P(ForeignOptimizer, LegalWritesAreNotMistakenForOne) {
  const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
    Engine& engine = *trainer.engine;
    const auto other = std::make_shared<FaultNet>();
    const auto beside =
        parallelize(other, adamw(), small_options_of(configuration()), trainer.world);
    trainer.train(0);
    trainer.backward(1);
    engine.modify_parameters(0, [&] { trainer.net->scale.mul_(2.0); });
    trainer.backward(2);
    {
      const auto scope = engine.no_sync();
      trainer.backward(3);
    }
    trainer.backward(4);
    other->forward(trainer.input(5)).square().mean().backward();
    beside->step();
    trainer.backward(6);
    EXPECT_TRUE(engine.step().committed);
    engine.load_state_dict(engine.state_dict(StateScope::kEveryRank));
    trainer.backward(7);
    engine.zero_grad();
    trainer.backward(8);
    { const auto scope = engine.full_parameters(); }
    trainer.backward(9);
    EXPECT_TRUE(engine.step().committed);
    parameter_hash(engine);
  });
  EXPECT_THAT(outcomes, Each(is_fine()));
}

}  // namespace
}  // namespace tessera::internal::testing
