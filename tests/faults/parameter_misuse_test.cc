#include <functional>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/tests/faults/trainer.h"

// Parameters that are written, replaced or unfrozen without the engine: the next step is refused on
// all ranks, by name.
namespace tessera::internal::testing {
namespace {

using ::testing::Each;

using ParameterMisuse = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, ParameterMisuse, ::testing::ValuesIn(settings({1, 2, 3})),
                         setting_name);

using WholeParameterMisuse = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, WholeParameterMisuse,
                         ::testing::ValuesIn(settings({1, 2, 3}, &Setting::has_whole_parameters)),
                         setting_name);

/// The same with peers.
using WholeParametersOfRanks = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, WholeParametersOfRanks,
                         ::testing::ValuesIn(settings({2, 3}, &Setting::has_whole_parameters)),
                         setting_name);

using SplitParameterMisuse = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, SplitParameterMisuse,
                         ::testing::ValuesIn(settings({1, 2, 3}, &Setting::splits_parameters)),
                         setting_name);

/// A change of the model between two steps, and the error of step().
struct Misuse {
  std::string name;
  std::function<void(FaultNet&)> run;
  std::string text;

  /// An operator that writes a split parameter is refused at once (tests/fsdp).
  bool is_write() const { return text.find("was written") != std::string::npos; }
};

constexpr const char* kMoved =
    "was re-assigned, converted or resized after parallelize and is no "
    "longer what the engine trains; write values inside "
    "engine->modify_parameters()";
constexpr const char* kWritten = "was written outside engine->modify_parameters(); write it inside";

std::vector<Misuse> misuses() {
  return {
      {"add_", [](FaultNet& net) { net.second->bias.add_(1.0); },
       std::string("parameter 'second.bias' ") + kWritten},
      {"write through .data()", [](FaultNet& net) { net.second->weight.data().mul_(2.0); },
       std::string("parameter 'second.weight' ") + kWritten},
      {"write of a frozen parameter", [](FaultNet& net) { net.frozen.zero_(); },
       std::string("parameter 'frozen' ") + kWritten},
      {"write through a view", [](FaultNet& net) { net.first->weight[0].zero_(); },
       std::string("parameter 'first.weight' ") + kWritten},
      {"torch::nn::init", [](FaultNet& net) { torch::nn::init::zeros_(net.first->bias); },
       std::string("parameter 'first.bias' ") + kWritten},
      {"set_data", [](FaultNet& net) { net.second->bias.set_data(net.second->bias.clone()); },
       std::string("parameter 'second.bias' ") + kMoved},
      {"to(kDouble)", [](FaultNet& net) { net.to(torch::kDouble); },
       std::string("parameter 'scale' ") + kMoved},
      {"vector_to_parameters",
       [](FaultNet& net) {
         torch::nn::utils::vector_to_parameters(
             torch::nn::utils::parameters_to_vector(net.parameters()), net.parameters());
       },
       std::string("parameter 'scale' ") + kMoved},
      {"resize_", [](FaultNet& net) { net.second->bias.set_data(torch::zeros({14})); },
       std::string("parameter 'second.bias' ") + kMoved},
      {"unfreezing", [](FaultNet& net) { net.frozen.requires_grad_(true); },
       "parameter 'frozen' is frozen in this engine and requires grad now; change what trains by "
       "engine->set_trainable()"},
  };
}

TEST_P(ParameterMisuse, RefusedByNameOnEveryRank) {
  for (const Misuse& deed : misuses()) {
    if (deed.is_write() && splits_parameters()) continue;
    for (const Who who : kAnyone) {
      SCOPED_TRACE(::testing::Message() << deed.name << " on " << who);
      const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
        EXPECT_TRUE(trainer.train(0).committed);
        trainer.backward(1);
        if (trainer.is_among(who)) {
          const at::NoGradGuard no_grad;
          deed.run(*trainer.net);
        }
        trainer.engine->step();
      });
      EXPECT_THAT(outcomes, every_rank_refuses({"[step] " + refusers(who, size()) + ": ", deed.text,
                                                "Nothing was applied."}));
    }
  }
}

// The change comes before backward, in which autograd itself sees the replaced parameter.
TEST_P(ParameterMisuse, RefusedAfterABackwardWithTheReplacedParameter) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      EXPECT_TRUE(trainer.train(0).committed);
      if (trainer.is_among(who)) {
        trainer.net->second->bias.set_data(trainer.net->second->bias.detach().clone());
      }
      trainer.train(1);
    });
    EXPECT_THAT(outcomes, every_rank_refuses({"[step] " + refusers(who, size()) + ": ",
                                              std::string("parameter 'second.bias' ") + kMoved}));
  }
}

TEST_P(ParameterMisuse, RefusedAfterABackwardInAnotherDtype) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      EXPECT_TRUE(trainer.train(0).committed);
      at::Tensor input = trainer.input(1);
      if (trainer.is_among(who)) {
        trainer.net->to(torch::kDouble);
        input = input.to(torch::kDouble);
      }
      trainer.net->forward(input).sum().backward();
      trainer.engine->step();
    });
    EXPECT_THAT(outcomes, every_rank_refuses({"[step] " + refusers(who, size()) + ": ",
                                              std::string("parameter 'scale' ") + kMoved}));
  }
}

TEST_P(ParameterMisuse, NamedByModifyParametersToo) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      if (trainer.is_among(who)) trainer.net->scale.set_data(torch::ones({}));
      trainer.engine->modify_parameters(0, [] { FAIL() << "must not run"; });
    });
    EXPECT_THAT(outcomes, every_rank_refuses({"[engine] " + refusers(who, size()) + ": ",
                                              std::string("parameter 'scale' ") + kMoved}));
  }
}

// Following the message's advice works: all ranks take one rank's values.
TEST_P(WholeParameterMisuse, AWriteCanBeMended) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.backward(0);
      if (trainer.is_among(who)) {
        const at::NoGradGuard no_grad;
        trainer.net->second->bias.add_(trainer.world->rank() + 1.0);
      }
      EXPECT_THAT(outcome_of([&] { trainer.engine->step(); }), is_misuse(kWritten));
      trainer.engine->modify_parameters(size() - 1, [] {});
      EXPECT_TRUE(trainer.engine->step().committed);
      EXPECT_TRUE(trainer.train(1).committed);
      parameter_hash(*trainer.engine);  // throws if ranks differ
    });
    EXPECT_THAT(outcomes, Each(is_fine()));
  }
}

// Negative control of the two tests above: the hash notices what the correction undoes. `.data()`
// has its own version counter, and step() compares only the first 64 elements, so it would not
// notice this write.
TEST_P(WholeParametersOfRanks, HashSeesADifference) {
  const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
    parameter_hash(*trainer.engine);
    if (trainer.world->rank() == 1) trainer.net->first->weight.data()[20].add_(1.0);
    parameter_hash(*trainer.engine);
  });
  EXPECT_THAT(outcomes,
              every_rank_refuses({"[engine] parameter_hash: rank 1 holds other parameters than "
                                  "rank 0; was one written outside engine->modify_parameters()?"}));
}

// Any write to split parameters is refused at once, without effect.
TEST_P(SplitParameterMisuse, AWriteIsRefusedOnTheSpot) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      EXPECT_TRUE(trainer.train(0).committed);
      trainer.backward(1);
      if (trainer.is_among(who)) {
        const at::NoGradGuard no_grad;
        for (const Misuse& deed : misuses()) {
          if (!deed.is_write()) continue;
          EXPECT_THAT(outcome_of([&] { deed.run(*trainer.net); }), is_misuse("[fsdp] unit '"))
              << deed.name;
        }
        torch::optim::AdamW foreign(trainer.net->parameters(), torch::optim::AdamWOptions(0.1));
        EXPECT_THAT(outcome_of([&] { foreign.step(); }), is_misuse("engine->modify_parameters()"));
      }
      EXPECT_TRUE(trainer.engine->step().committed);
      parameter_hash(*trainer.engine);
    });
    EXPECT_THAT(outcomes, Each(is_fine()));
  }
}

}  // namespace
}  // namespace tessera::internal::testing
