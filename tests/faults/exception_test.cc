#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/tests/faults/trainer.h"

// Exceptions of the user's code on one rank: the others are not left waiting, and partial results
// are not used.
namespace tessera::internal::testing {
namespace {

using ::testing::Each;
using ::testing::Not;

using Exceptions = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, Exceptions, ::testing::ValuesIn(settings({1, 2, 3})),
                         setting_name);

using ExceptionsOverWholeParameters = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, ExceptionsOverWholeParameters,
                         ::testing::ValuesIn(settings({1, 2, 3}, &Setting::has_whole_parameters)),
                         setting_name);

/// An operator whose backward throws if `breaks`.
struct Fragile : torch::autograd::Function<Fragile> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            bool breaks) {
    context->saved_data["breaks"] = breaks;
    return input.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (context->saved_data["breaks"].toBool()) throw std::runtime_error("fragile operator broke");
    return {gradients[0], at::Tensor()};
  }
};

/// Expects that peers of `who` got a CommError whose cause is that rank followed by `cause`, and
/// that those in `who` threw `own`.
void expect_blame(const std::vector<Ending>& outcomes, Who who, const std::string& own,
                  const std::string& cause) {
  const int size = static_cast<int>(outcomes.size());
  for (int rank = 0; rank < size; ++rank) {
    if (is_among(who, rank, size)) {
      EXPECT_THAT(outcomes[rank], is_other(own)) << "rank " << rank;
    } else {
      EXPECT_THAT(outcomes[rank], is_comm_error(first_of(who, size) + cause)) << "rank " << rank;
    }
  }
}

TEST_P(Exceptions, InForward) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.train(0);
      if (trainer.is_among(who)) throw std::runtime_error("out of data");
      trainer.train(1);
    });
    expect_blame(outcomes, who, "out of data", " left while an exception unwound");
  }
}

// Thrown inside an operator that has pinned its units: if the user catches it, it has no effect.
TEST_P(Exceptions, InAnOperatorThatUsesTwoUnits) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      FaultNet& net = *trainer.net;
      trainer.train(0);
      if (trainer.is_among(who)) {
        EXPECT_THAT(outcome_of([&] { at::matmul(net.first->weight, net.second->weight.t()); }),
                    is_misuse("mat"));
        EXPECT_THAT(outcome_of([&] {
                      at::cat({net.first->weight, net.second->weight});
                    }),
                    is_misuse("Sizes of tensors must match"));
      }
      EXPECT_EQ(trainer.train(1).step, 2);
      const GatherCounts counts = trainer.engine->gather_counts();
      EXPECT_EQ(counts.gathers, counts.frees) << "a pin was left behind";
      parameter_hash(*trainer.engine);
    });
    EXPECT_THAT(outcomes, Each(is_fine()));
  }
}

// The same without a catch.
TEST_P(Exceptions, InAnOperatorOfForward) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      FaultNet& net = *trainer.net;
      trainer.train(0);
      const at::Tensor hidden = net.first->forward(trainer.input(1));
      if (trainer.is_among(who)) at::matmul(hidden, net.second->weight);
      net.second->forward(hidden).sum().backward();
      trainer.engine->step();
    });
    for (int rank = 0; rank < size(); ++rank) {
      if (is_among(who, rank, size())) {
        EXPECT_THAT(outcomes[rank], is_misuse("mat1 and mat2 shapes cannot be multiplied"));
      } else {
        EXPECT_THAT(outcomes[rank],
                    is_comm_error(first_of(who, size()) + " left while an exception unwound"));
      }
    }
  }
}

TEST_P(Exceptions, InAGradientHook) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.net->first->weight.register_hook([&](const at::Tensor&) {
        if (trainer.is_among(who)) throw std::runtime_error("hook broke");
      });
      trainer.train(0);
    });
    expect_blame(outcomes, who, "hook broke", " left backward by an exception");
  }
}

// Thrown halfway: later layers have delivered their gradients.
TEST_P(Exceptions, InACustomFunction) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      FaultNet& net = *trainer.net;
      const at::Tensor hidden = torch::tanh(net.first->forward(trainer.input(0)));
      const at::Tensor passed = Fragile::apply(hidden, trainer.is_among(who));
      (net.scale * net.second->forward(passed)).sum().backward();
    });
    expect_blame(outcomes, who, "fragile operator broke", " left backward by an exception");
  }
}

// Thrown at the top: no gradient of this backward has reached an engine. Caught on all ranks, it
// only skips the batch.
TEST_P(Exceptions, BeforeTheFirstGradient) {
  const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
    trainer.train(0);
    const at::Tensor loss = Fragile::apply(trainer.loss(1), true);
    EXPECT_THAT(outcome_of([&] { loss.backward(); }), is_other("fragile operator broke"));
    EXPECT_EQ(trainer.train(2).step, 2);
    parameter_hash(*trainer.engine);
  });
  EXPECT_THAT(outcomes, Each(is_fine()));
}

TEST_P(Exceptions, BeforeTheFirstGradientOnOneRank) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      Fragile::apply(trainer.loss(1), trainer.is_among(who)).backward();
      trainer.engine->step();
    });
    expect_blame(outcomes, who, "fragile operator broke", " left while an exception unwound");
  }
}

// A program that catches the exception and continues: every later call of the engine, on every
// rank, throws the cause again.
TEST_P(Exceptions, ABackwardAfterAFailedOne) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      const std::string cause = first_of(who, size()) + " left backward by an exception";
      bool breaks = trainer.is_among(who);
      trainer.net->first->weight.register_hook([&breaks](const at::Tensor&) {
        if (breaks) throw std::runtime_error("hook broke");
      });
      const Ending first = outcome_of([&] { trainer.backward(0); });
      EXPECT_THAT(first, breaks ? is_other("hook broke") : is_comm_error(cause));
      breaks = false;
      EXPECT_THAT(outcome_of([&] { trainer.backward(1); }), is_comm_error(cause));
      EXPECT_THAT(outcome_of([&] { trainer.engine->step(); }), is_comm_error(cause));
      EXPECT_THAT(outcome_of([&] { trainer.engine->zero_grad(); }), is_comm_error(cause));
      EXPECT_THAT(outcome_of([&] { trainer.engine->modify_parameters(0, [] {}); }),
                  is_comm_error(cause));
      EXPECT_THAT(outcome_of([&] { parameter_hash(*trainer.engine); }), is_comm_error(cause));
      auto scope = trainer.engine->full_parameters();
    });
    EXPECT_THAT(outcomes,
                every_rank_loses_contact({first_of(who, size()) + " left backward by an exception",
                                          "the gradients of this step are incomplete"}));
  }
}

TEST_P(Exceptions, WhileTheEngineIsMade) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = outcomes_of_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
      if (is_among(who, *world)) throw std::runtime_error("no such file");
      Trainer trainer(world, configuration());
    });
    expect_blame(outcomes, who, "no such file", " left while an exception unwound");
  }
}

// After the exception the model can still be read. Split parameters need peers, so every read of
// them throws the engine's error.
TEST_P(ExceptionsOverWholeParameters, ParametersStayReadable) {
  const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
    trainer.train(0);
    const at::Tensor before = trainer.net->first->weight.detach().clone();
    trainer.net->first->weight.register_hook(
        [](const at::Tensor&) { throw std::runtime_error("hook broke"); });
    EXPECT_THAT(outcome_of([&] { trainer.backward(1); }), Not(is_fine()));
    EXPECT_TRUE(torch::equal(trainer.net->first->weight, before));
    trainer.engine.reset();
    EXPECT_TRUE(torch::equal(trainer.net->first->weight, before));
  });
  EXPECT_THAT(outcomes, Each(is_fine()));
}

}  // namespace
}  // namespace tessera::internal::testing
