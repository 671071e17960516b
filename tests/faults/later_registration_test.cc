#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/tests/faults/trainer.h"

// Modules, parameters and buffers added or removed after parallelize(): all ranks name them, so
// they are not silently missing from training or a state.
namespace tessera::internal::testing {
namespace {

using ::testing::Each;

using LaterRegistration = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, LaterRegistration, ::testing::ValuesIn(settings({1, 2, 3})),
                         setting_name);

/// A change of the model after parallelize().
struct Deed {
  std::string name;
  std::function<void(FaultNet&)> run;
  std::string step;   ///< error of step(); "" if none
  std::string state;  ///< error of state_dict()
};

void add_parameter(FaultNet& net, bool is_trainable) {
  net.register_parameter("later", torch::ones({3}), is_trainable);
}
void replace_second(FaultNet& net) {
  net.second = net.replace_module("second", torch::nn::Linear(37, 13));
}
void add_buffer(FaultNet& net) { net.register_buffer("mask", torch::ones({3})); }

constexpr const char* kLater =
    "registered after parallelize and is neither trained nor saved; register it before "
    "parallelize, or make a new engine";
constexpr const char* kNotSaved =
    "registered after parallelize and is not saved; register it before parallelize, or make a new "
    "engine";

std::vector<Deed> deeds() {
  const std::string replaced =
      "parameters 'second.weight', 'second.bias' were registered after parallelize and are neither "
      "trained nor saved; register them before parallelize, or make a new engine; parameters "
      "'second.weight', 'second.bias' are no longer registered in the model but still the engine's";
  return {
      {"a parameter", [](FaultNet& net) { add_parameter(net, true); },
       std::string("parameter 'later' was ") + kLater,
       std::string("parameter 'later' was ") + kLater},
      {"a module", [](FaultNet& net) { net.register_module("third", torch::nn::Linear(2, 3)); },
       "parameters 'third.weight', 'third.bias' were registered after parallelize",
       "parameters 'third.weight', 'third.bias' were registered after parallelize"},
      {"a replaced module", replace_second, replaced, replaced},
      {"a frozen parameter", [](FaultNet& net) { add_parameter(net, false); }, "",
       std::string("frozen parameter 'later' was ") + kNotSaved},
      {"a buffer", add_buffer, "", std::string("buffer 'mask' was ") + kNotSaved},
      {"a parameter that goes", [](FaultNet& net) { net.unregister_module("first"); },
       "parameters 'first.weight', 'first.bias' are no longer registered in the model",
       "parameters 'first.weight', 'first.bias' are no longer registered in the model"},
  };
}

TEST_P(LaterRegistration, IsNamedByTheFirstStep) {
  for (const Deed& deed : deeds()) {
    for (const Who who : kAnyone) {
      SCOPED_TRACE(::testing::Message() << deed.name << " on " << who);
      const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
        trainer.backward(0);
        if (trainer.is_among(who)) deed.run(*trainer.net);
        trainer.engine->step();
      });
      if (deed.step.empty()) {
        EXPECT_THAT(outcomes, Each(is_fine()));
      } else {
        EXPECT_THAT(outcomes, every_rank_refuses({"[step] " + refusers(who, size()) + ": ",
                                                  deed.step, "Nothing was applied."}));
      }
    }
  }
}

TEST_P(LaterRegistration, IsNamedByStateDict) {
  for (const Deed& deed : deeds()) {
    for (const StateScope scope : {StateScope::kEveryRank, StateScope::kSharded}) {
      for (const Who who : kAnyone) {
        SCOPED_TRACE(::testing::Message() << deed.name << " on " << who);
        const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
          trainer.train(0);
          (void)trainer.engine->state_dict(scope);
          if (trainer.is_among(who)) deed.run(*trainer.net);
          (void)trainer.engine->state_dict(scope);
        });
        EXPECT_THAT(outcomes,
                    every_rank_refuses({"[state] " + refusers(who, size()) + ": ", deed.state}));
      }
    }
  }
}

// Walking a model allocates, so the engine does not do it in every step.
TEST_P(LaterRegistration, IsLookedForAtStepsThatArePowersOfTwo) {
  const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
    std::vector<int> refused;
    for (int step = 1; step <= 17; ++step) {
      if (step == 3) trainer.net->register_module("third", torch::nn::Linear(2, 3));
      trainer.backward(step);
      const Ending outcome = outcome_of([&] { trainer.engine->step(); });
      if (outcome.kind == Ending::Kind::kFine) continue;
      EXPECT_THAT(outcome, is_misuse("'third.weight', 'third.bias' were registered"));
      refused.push_back(step);
      // Refused until it is corrected; then the same gradients are used.
      EXPECT_THAT(outcome_of([&] { trainer.engine->step(); }), is_misuse("'third.weight'"));
      trainer.net->unregister_module("third");
      EXPECT_TRUE(trainer.engine->step().committed);
      if (step == 4) trainer.net->register_module("third", torch::nn::Linear(2, 3));
    }
    EXPECT_EQ(refused, std::vector<int>({4, 8}));
    parameter_hash(*trainer.engine);
  });
  EXPECT_THAT(outcomes, Each(is_fine()));
}

// The engine does not own this model.
TEST_P(LaterRegistration, IsFoundInAModelThatTheCallerKeeps) {
  const auto outcomes = outcomes_of_ranks(size(), [&](const std::shared_ptr<ProcessGroup>& world) {
    FaultNet net;
    const auto engine = parallelize(net, adamw(), small_options_of(configuration()), world);
    net.forward(at::ones({4, 11})).sum().backward();
    add_parameter(net, true);
    engine->step();
  });
  EXPECT_THAT(outcomes, every_rank_refuses({std::string("parameter 'later' was ") + kLater}));
}

TEST_P(LaterRegistration, AFrozenModuleMayGoWhileTheModelTrains) {
  const auto outcomes = outcomes_of_ranks(size(), [&](const std::shared_ptr<ProcessGroup>& world) {
    FaultNet net;
    const auto frozen = net.register_module("frozen_layer", torch::nn::Linear(2, 3));
    for (at::Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);
    const auto engine = parallelize(net, adamw(), small_options_of(configuration()), world);
    net.unregister_module("frozen_layer");
    net.forward(at::ones({4, 11})).sum().backward();
    EXPECT_TRUE(engine->step().committed);
    (void)engine->state_dict(StateScope::kEveryRank);
  });
  EXPECT_THAT(outcomes,
              every_rank_refuses({"frozen parameters 'frozen_layer.weight', 'frozen_layer.bias' "
                                  "are no longer registered in the model"}));
}

TEST_P(LaterRegistration, WhatIsIgnoredStaysSo) {
  const auto outcomes = outcomes_of_ranks(size(), [&](const std::shared_ptr<ProcessGroup>& world) {
    FaultNet net;
    net.register_parameter("ignored_before", torch::ones({2}));
    Options options = small_options_of(configuration());
    options.ignores = [](std::string_view name) { return name.find("ignored") != name.npos; };
    const auto engine = parallelize(net, adamw(), options, world);
    const at::Tensor later = net.register_parameter("ignored_later", torch::ones({2}));
    net.register_parameter("under_another_name", later);
    net.register_parameter("weight_too", net.first->weight);  // tied after parallelize
    net.forward(at::ones({4, 11})).sum().backward();
    EXPECT_TRUE(engine->step().committed);
    EXPECT_EQ(engine->state_dict(StateScope::kEveryRank).entries.count("model.ignored_later"), 0u);
  });
  EXPECT_THAT(outcomes, Each(is_fine()));
}

}  // namespace
}  // namespace tessera::internal::testing
