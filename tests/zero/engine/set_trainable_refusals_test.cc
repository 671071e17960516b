#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/core/grad/gradient_hook.h"
#include "tessera/lion_options.h"
#include "tessera/muon_options.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/zero/engine/engine_fixture.h"
#include "tessera/tests/zero/engine/thawed_rank.h"

// Refusals of Engine::set_trainable() and add_group(), on all ranks and without any change; and
// groups of a plan that are unused at first or added later.
namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

bool is_weight(std::string_view name) { return name.ends_with("weight"); }
bool is_no_weight(std::string_view name) { return !is_weight(name); }

AdamWOptions slow() { return AdamWOptions(0.001).eps(1e-6); }
AdamWOptions fast() { return AdamWOptions(0.02).eps(1e-6); }

/// A call that every rank makes, possibly differently on the last one.
struct Refusal {
  std::string name;
  std::function<void(ThawedRank&, bool is_last)> call;
  std::vector<std::string> parts;
};

void change(ThawedRank& rank) { rank.engine->set_trainable(&is_weight); }

std::vector<Refusal> refusals() {
  return {
      {"gradients",
       [](ThawedRank& rank, bool) {
         rank.backward(7);
         change(rank);
       },
       {"set_trainable: called after 1 backward(s)", "call step() or zero_grad() first"}},
      {"a scope on one rank",
       [](ThawedRank& rank, bool is_last) {
         auto scope = rank.engine->full_parameters();
         if (!is_last) scope.reset();
         change(rank);
       },
       {"set_trainable was called while a full_parameters() or gather() scope is open",
        "end the scope first"}},
      {"an average",
       [](ThawedRank& rank, bool) {
         auto average = rank.engine->begin_average();
         const std::string text = message_of([&] { change(rank); });
         average.end();
         throw std::runtime_error(text);
       },
       {"set_trainable: called inside begin_average()"}},
      {"a written parameter",
       [](ThawedRank& rank, bool is_last) {
         const at::Tensor bias = rank.net->named_parameters()["layer1.bias"];
         const at::Tensor before = bias.detach().clone();
         if (is_last) bias.detach().add_(1.0);
         const std::string text = message_of([&] { change(rank); });
         rank.engine->modify_parameters(0, [&] { bias.copy_(before); });
         throw std::runtime_error(text);
       },
       {"parameter 'layer1.bias' was written"}},
      {"no predicate",
       [](ThawedRank& rank, bool) { rank.engine->set_trainable(nullptr); },
       {"set_trainable: got no predicate, expected one"}},
      {"nothing",
       [](ThawedRank& rank, bool) {
         rank.engine->set_trainable([](std::string_view name) { return name == "layer9.bias"; });
       },
       {"set_trainable: got a predicate that accepts none of 6 parameters",
        "engine->parameters()"}},
      {"a predicate that throws on one rank",
       [](ThawedRank& rank, bool is_last) {
         rank.engine->set_trainable([&](std::string_view) -> bool {
           if (is_last) throw std::runtime_error("no such list");
           return true;
         });
       },
       {"rank ", ": set_trainable: its predicate threw for 'layer0.weight': no such list"}},
      {"a group whose predicate throws on one rank",
       [](ThawedRank& rank, bool is_last) {
         const auto selects = [&](std::string_view) -> bool {
           if (is_last) throw 7;
           return true;
         };
         rank.engine->add_group({"slow", selects, slow()});
       },
       {"[optim] group 'slow': its predicate threw for 'layer0.weight'"}},
      {"another group on one rank",
       [](ThawedRank& rank, bool is_last) {
         rank.engine->add_group({"slow", is_last ? &is_weight : &is_no_weight, slow()});
       },
       {"add_group"}},
      {"a group that selects nothing",
       [](ThawedRank& rank, bool) {
         rank.engine->add_group({"slow", [](std::string_view) { return false; }, slow()});
       },
       {"group 'slow': got no parameter, expected at least one", "correct its predicate"}},
      {"a group of bad options",
       [](ThawedRank& rank, bool) {
         rank.engine->add_group({"slow", &is_weight, AdamWOptions(-1)});
       },
       {"group 'slow': lr: got -1"}},
      {"a name that is taken",
       [](ThawedRank& rank, bool) {
         rank.engine->add_group({"defaults", &is_weight, slow()});
       },
       {"add_group: got the name 'defaults', expected one that no group has"}},
      {"another algorithm",
       [](ThawedRank& rank, bool) {
         rank.engine->add_group({"lion", &is_weight, LionOptions(1e-3)});
       },
       {"group 'lion' selects parameter 'layer0.weight', which AdamW trains", "freeze it first"}},
      {"a parameter of later",
       [](ThawedRank& rank, bool) {
         rank.net->register_parameter("late", torch::zeros({3}));
         change(rank);
       },
       {"'late' was registered after parallelize"}},
  };
}

class SetTrainableRefusals : public EngineTest {};
INSTANTIATE_TEST_SUITE_P(Configurations, SetTrainableRefusals, configurations_and_worlds(),
                         name_of);

TEST_P(SetTrainableRefusals, AreErrorsOnAllRanksThatChangeNothing) {
  for (const Refusal& refusal : refusals()) {
    SCOPED_TRACE(refusal.name);
    Configuration configuration = this->configuration();
    configuration.average = WeightAverage{};
    if (refusal.name == "a written parameter" && splits_parameters()) continue;
    run_ranks(size(), [&](std::shared_ptr<ProcessGroup> group) {
      const bool is_last = group->rank() == group->size() - 1;
      const bool is_alone = group->size() == 1;
      ThawedRank rank(std::move(group), "OddMlp", configuration, all_train);
      rank.train(0, 1);
      const StateDict before = rank.state();
      const std::string text = message_of([&] { refusal.call(rank, is_last); });
      if (is_alone && refusal.name == "another group on one rank") return;
      for (const std::string& part : refusal.parts) EXPECT_THAT(text, HasSubstr(part));
      if (refusal.name == "a parameter of later") return;
      rank.engine->zero_grad();
      EXPECT_EQ(bit_differences(rank.state(), before), "");
      rank.train(1, 2);
      change(rank);
      rank.train(2, 3);
    });
  }
}

TEST(SetTrainableOnRanks, OneRankWithAnotherPredicateIsNamedByAll) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> group) {
    const bool is_odd_one = group->rank() == 1;
    const ThawedRank rank(std::move(group), "OddMlp", configuration_of(Strategy::kZero3),
                          all_train);
    rank.train(0, 1);
    EXPECT_THAT(
        message_of([&] {
          rank.engine->set_trainable([&](std::string_view name) {
            return is_odd_one ? name != "layer1.bias" : is_weight(name);
          });
        }),
        AllOf(HasSubstr("[set_trainable] rank 1 differs from rank 0"), HasSubstr("'layer0.bias'")));
    rank.train(1, 2);
    EXPECT_EQ(rank.engine->steps(), 2);
  });
}

TEST(SetTrainableOnRanks, BackwardStaysOnTheThreadThatMadeTheEngine) {
  const ThawedRank rank(init_process_group(), "OddMlp", configuration_of(Strategy::kDdp),
                        all_train);
  std::string text;
  std::thread([&] { text = message_of([&] { rank.engine->set_trainable(&is_weight); }); }).join();
  EXPECT_THAT(text, HasSubstr("set_trainable: called on another thread than parallelize"));
}

TEST(SetTrainableOnRanks, AHookOfTheUsersOnWhatIsNewIsNamed) {
  const ThawedRank rank(init_process_group(), "OddMlp", configuration_of(Strategy::kDdp),
                        &is_weight);
  at::Tensor bias = rank.net->named_parameters()["layer0.bias"];
  bias.set_requires_grad(true);
  struct Nothing final : GradientSink {
    void before_gradient(size_t) override {}
    void gradient(size_t, at::Tensor) override {}
  } nothing;
  const GradientHook taken(bias, 0, nothing);
  EXPECT_THAT(message_of([&] { rank.engine->set_trainable(all_train); }),
              HasSubstr("parameter 'layer0.bias' has a post-accumulate-gradient hook"));
}

TEST(SetTrainableOnRanks, MendsWhatTheUserSwitched) {
  const ThawedRank rank(init_process_group(), "OddMlp", configuration_of(Strategy::kZero2),
                        &is_weight);
  auto parameters = rank.net->named_parameters();
  parameters["layer0.bias"].set_requires_grad(true);
  rank.engine->set_trainable(all_train);
  rank.train(0, 1);
  parameters["layer0.bias"].set_requires_grad(false);
  rank.engine->set_trainable(all_train);
  EXPECT_TRUE(parameters["layer0.bias"].requires_grad());
  rank.train(1, 2);
}

// --- Groups ---

class AddedGroups : public EngineTest {};
INSTANTIATE_TEST_SUITE_P(Configurations, AddedGroups, configurations_and_worlds(), name_of);

/// Whether the group is in the plan from the beginning, or is added while its parameters are
/// frozen, or after that.
TEST_P(AddedGroups, TrainAsIfThePlanHadHadThem) {
  const OptimizerPlan plan(fast(), {{"biases", &is_no_weight, slow()}});
  run_ranks(size(), [&](const std::shared_ptr<ProcessGroup>& group) {
    const ThawedRank waited(group, "OddMlp", configuration(), &is_weight, 3, plan);
    const ThawedRank added(group, "OddMlp", configuration(), &is_weight, 3, fast());
    const ThawedRank added_late(group, "OddMlp", configuration(), &is_weight, 3, fast());
    for (const ThawedRank* rank : {&waited, &added, &added_late}) rank->train(0, 2);
    added.engine->add_group({"biases", &is_no_weight, slow()});
    for (const ThawedRank* rank : {&waited, &added, &added_late}) {
      rank->engine->set_trainable(all_train);
    }
    added_late.engine->add_group({"biases", &is_no_weight, slow()});
    for (const ThawedRank* rank : {&waited, &added, &added_late}) rank->train(2, 4);
    EXPECT_EQ(bit_differences(added.state(), waited.state()), "");
    EXPECT_EQ(bit_differences(added_late.state(), waited.state()), "");
    EXPECT_EQ(waited.state().entries.count("optimizer.biases.lr"), 1U);
    EXPECT_EQ(added.engine->optimizer().param_groups().size(), 2U);
    const ThawedRank fresh(group, "OddMlp", configuration(), all_train, 9, plan);
    fresh.engine->load_state_dict(added.state());
    EXPECT_EQ(added.engine->memory().now()[MemoryClass::kOptimizer],
              fresh.engine->memory().now()[MemoryClass::kOptimizer]);
  });
}

TEST(SetTrainableOnRanks, WhatAnAlgorithmCannotTrainIsNamedAndNothingChanges) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const ThawedRank run(group, "OddMlp", configuration_of(Strategy::kZero2), is_weight, 3,
                         MuonOptions(0.02));
    run.train(0, 1);
    const std::string message =
        message_of([&] { run.engine->set_trainable([](std::string_view) { return true; }); });
    EXPECT_THAT(message, HasSubstr("[optim] defaults: got parameter '"));
    EXPECT_THAT(message, HasSubstr("expected dim() == 2, which Muon needs"));
    run.train(1, 2);
  });
}

TEST(AddedGroupsOfPlans, MayHaveAnotherAlgorithmForWhatIsFrozen) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    const ThawedRank rank(std::move(group), "OddMlp", configuration_of(Strategy::kZero3),
                          &is_weight);
    rank.train(0, 1);
    rank.engine->add_group({"biases", &is_no_weight, SGDOptions(0.1)});
    rank.engine->set_trainable(all_train);
    rank.train(1, 2);
    const StateDict state = rank.state();
    EXPECT_EQ(state.entries.count("optimizer.layer0.bias.exp_avg"), 0U);
    EXPECT_EQ(state.entries.at("optimizer.layer0.weight.step").tensor().item<int64_t>(), 2);
  });
}

TEST(SetTrainableOnRanks, AnotherCallOnOneRankIsNamedByAll) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const ThawedRank rank(group, "OddMlp", configuration_of(Strategy::kZero3), &is_weight);
    const auto differ = [&] {
      if (group->rank() == 2) {
        rank.engine->set_trainable(all_train);
      } else {
        rank.engine->add_group({"slow", &is_weight, slow()});
      }
    };
    EXPECT_EQ(message_of(differ),
              "[engine] rank 2 differs from rank 0 at entry 0: 'set_trainable' vs 'add_group'; all "
              "ranks must pass the same");
    rank.train(0, 1);
  });
}

TEST(AddedGroupsOfPlans, WithNoParameterOfTheirOwnAreRefused) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const ThawedRank rank(group, "OddMlp", configuration_of(Strategy::kZero2), all_train, 3,
                          {fast(), {{"biases", &is_no_weight, slow()}}});
    rank.train(0, 1);
    const auto is_bias = [](std::string_view name) { return name == "layer1.bias"; };
    EXPECT_THAT(message_of([&] {
                  rank.engine->add_group({"late", is_bias, slow()});
                }),
                HasSubstr("[optim] group 'late': got 'layer1.bias' and no parameter that is not in "
                          "another group, as that is in group 'biases', expected at least one of "
                          "the defaults'; change that group's options"));
    rank.train(1, 2);
  });
}

/// The plan's predicates are called only in parallelize(): before parameters are converted, and
/// while the objects that they refer to exist.
TEST(AddedGroupsOfPlans, DoNotAskThePlansPredicatesAgain) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Configuration configuration = configuration_of(Strategy::kZero3);
    configuration.precision.parameters = at::kBFloat16;
    bool is_over = false;
    const auto is_wide = [&](std::string_view name, const at::Tensor& parameter) {
      EXPECT_FALSE(is_over);
      return is_no_weight(name) && parameter.scalar_type() == at::kFloat;
    };
    const ThawedRank rank(group, "OddMlp", configuration, all_train, 3,
                          {fast(), {{"biases", is_wide, slow()}}});
    is_over = true;
    rank.train(0, 1);
    rank.engine->add_group({"late", &is_weight, slow()});
    rank.train(1, 2);
  });
}

}  // namespace
}  // namespace tessera::internal::testing
