#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/tests/faults/trainer.h"

// Ranks whose loops differ: one makes a call more or less than the others.
namespace tessera::internal::testing {
namespace {

using ::testing::Each;

using Divergence = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, Divergence, ::testing::ValuesIn(settings({2, 3})), setting_name);

TEST_P(Divergence, ExtraBackward) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.train(0);
      trainer.backward(1);
      if (trainer.is_among(who)) trainer.backward(2);
      trainer.engine->step();
    });
    EXPECT_THAT(outcomes,
                every_rank_loses_contact({first_of(who, size()) + " called ", "where rank",
                                          first_complete_unit(), "'vote of the step'"}));
  }
}

TEST_P(Divergence, SkippedBackward) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.train(0);
      if (!trainer.is_among(who)) trainer.backward(1);
      trainer.engine->step();
    });
    EXPECT_THAT(outcomes,
                every_rank_loses_contact({first_of(who, size()) + " called ", "where rank",
                                          first_complete_unit(), "'vote of the step'"}));
  }
}

TEST_P(Divergence, ExtraStep) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.train(0);
      if (trainer.is_among(who)) trainer.engine->step();
      trainer.train(1);
    });
    EXPECT_THAT(outcomes, every_rank_loses_contact({first_of(who, size()) + " called ",
                                                    first_complete_unit(), "'vote of the step'"}));
  }
}

TEST_P(Divergence, BackwardOnAnotherThread) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      if (trainer.is_among(who)) {
        std::thread([&] {
          EXPECT_THAT(outcome_of([&] { trainer.backward(0); }), is_misuse("on a thread that"));
        }).join();
      } else {
        trainer.backward(0);
      }
      trainer.engine->step();
    });
    EXPECT_THAT(outcomes, every_rank_loses_contact({first_unit(), "'vote of the step'"}));
  }
}

constexpr const char* kDiffer =
    "differ in what they reduced or dropped before the end of this "
    "backward; call backward, no_sync and zero_grad alike on all ranks";

TEST_P(Divergence, NoSyncOnOneRank) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.train(0);
      const Ending outcome = outcome_of([&] {
        if (trainer.is_among(who)) {
          const auto scope = trainer.engine->no_sync();
          trainer.backward(1);
        } else {
          trainer.backward(1);
        }
        trainer.engine->step();
      });
      EXPECT_THAT(outcome, is_misuse(kDiffer));
      trainer.engine->zero_grad();
      EXPECT_EQ(trainer.train(2).step, 2);
      parameter_hash(*trainer.engine);
      if (trainer.is_among(who)) {
        const auto scope = trainer.engine->no_sync();
        trainer.backward(3);
      }
      trainer.train(4);
    });
    EXPECT_THAT(outcomes,
                every_rank_refuses({"[grad] rank ", " and rank 0 ", kDiffer,
                                    who == Who::kLastRank ? first_of(who, size()) : "rank 1"}));
  }
}

TEST_P(Divergence, ZeroGradOnOneRankBeforeStep) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.backward(0);
      if (trainer.is_among(who)) trainer.engine->zero_grad();
      EXPECT_THAT(
          outcome_of([&] { trainer.engine->step(); }),
          is_misuse("[step] " + first_of(who, size()) + " called step() without a backward"));
      trainer.engine->zero_grad();
      EXPECT_EQ(trainer.train(1).step, 1);
      parameter_hash(*trainer.engine);
    });
    EXPECT_THAT(outcomes, Each(is_fine()));
  }
}

TEST_P(Divergence, ZeroGradOnOneRankBetweenMicroSteps) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.backward(0);
      if (trainer.is_among(who)) trainer.engine->optimizer().zero_grad();
      EXPECT_THAT(outcome_of([&] { trainer.backward(1); }), is_misuse(kDiffer));
      // A step now would add different gradients.
      EXPECT_THAT(outcome_of([&] { trainer.engine->step(); }),
                  is_misuse("[step] what was reduced and dropped (a hash of it) differs"));
      trainer.engine->zero_grad();
      EXPECT_EQ(trainer.train(2).step, 1);
      parameter_hash(*trainer.engine);
    });
    EXPECT_THAT(outcomes, Each(is_fine()));
  }
}

// zero_grad() without anything to drop is no difference.
TEST_P(Divergence, NeedlessZeroGradOnOneRank) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.train(0);
      if (trainer.is_among(who)) trainer.engine->zero_grad();
      EXPECT_EQ(trainer.train(1).step, 2);
      parameter_hash(*trainer.engine);
    });
    EXPECT_THAT(outcomes, Each(is_fine()));
  }
}

TEST_P(Divergence, OneGradientClearedOnOneRank) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.backward(0);
      if (trainer.is_among(who)) trainer.net->scale.mutable_grad().reset();
      trainer.engine->step();
    });
    EXPECT_THAT(outcomes,
                every_rank_refuses({"[step] what was reduced and dropped (a hash of it) differs",
                                    "call backward, no_sync and zero_grad alike on all ranks",
                                    "Nothing was applied."}));
  }
}

TEST_P(Divergence, ModifyFromDifferentRanks) {
  const auto outcomes = train_ranks(GetParam(), [](Trainer& trainer) {
    trainer.engine->modify_parameters(trainer.world->rank() == 0 ? 0 : 1, [] {});
  });
  EXPECT_THAT(outcomes, every_rank_loses_contact(
                            {"broadcast", "from rank 0", "from rank 1", "'modify_parameters'"}));
}

TEST_P(Divergence, FullParametersOnOneRank) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      if (trainer.is_among(who)) auto scope = trainer.engine->full_parameters();
      trainer.train(0);
    });
    EXPECT_THAT(outcomes, every_rank_loses_contact({"barrier 'full_parameters'", first_unit()}));
  }
}

TEST_P(Divergence, OwnCollectivesBetweenTheEngines) {
  const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
    for (int batch = 0; batch < 3; ++batch) {
      at::Tensor loss = trainer.loss(batch);
      at::Tensor mean = loss.detach().clone().view({1});
      trainer.world->all_reduce(mean, ReduceOp::kAvg, "loss")->wait();
      loss.backward();
      trainer.world->barrier("before the step");
      EXPECT_TRUE(trainer.engine->step().committed);
    }
  });
  EXPECT_THAT(outcomes, Each(is_fine()));
}

// The engine's group and the world each wait for ranks in the other.
TEST_P(Divergence, OwnCollectiveSkippedOnOneRank) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto skip = [&](Trainer& trainer) {
      trainer.train(0);
      if (!trainer.is_among(who)) trainer.world->barrier("of the user");
      trainer.train(1);
    };
    const auto outcomes = train_ranks(GetParam(), skip, kShortTimeout);
    EXPECT_THAT(outcomes, every_rank_loses_contact({"timed out", "'of the user'",
                                                    first_complete_unit(), first_of(who, size())}));
  }
}

// The last rank has left when the others begin another step.
TEST_P(Divergence, OneRankEndsEarly) {
  const int last = size() - 1;
  const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
    trainer.train(0);
    if (trainer.world->rank() != last) trainer.train(1);
  });
  for (int rank = 0; rank < last; ++rank) {
    EXPECT_THAT(outcomes[rank],
                is_comm_error(absl::StrCat("rank ", last, " left the group after ")));
    EXPECT_EQ(outcomes[rank].text, outcomes[0].text);
  }
  EXPECT_THAT(outcomes[last], is_fine());
}

// Negative control of this file: ranks may evaluate alone.
TEST_P(Divergence, EvaluationOnOneRankIsNone) {
  const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
    trainer.train(0);
    if (trainer.world->rank() == 0) {
      const at::NoGradGuard no_grad;
      trainer.loss(7);
    }
    EXPECT_TRUE(trainer.train(1).committed);
    parameter_hash(*trainer.engine);
  });
  EXPECT_THAT(outcomes, Each(is_fine()));
}

}  // namespace
}  // namespace tessera::internal::testing
