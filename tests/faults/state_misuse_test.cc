#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/core/comm/groups/loopback_group.h"
#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/tests/faults/trainer.h"

// Calls of the engine in the wrong state or with wrong arguments, by all ranks or by one. All ranks
// must give the same error, and if nothing was lost, training must go on.
namespace tessera::internal::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

using StateMisuse = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, StateMisuse, ::testing::ValuesIn(settings({1, 2, 3})),
                         setting_name);

/// Configurations in which a frozen parameter is in no unit.
using StateMisuseOverWholeParameters = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, StateMisuseOverWholeParameters,
                         ::testing::ValuesIn(settings({1, 2, 3}, &Setting::has_whole_parameters)),
                         setting_name);

TEST_P(StateMisuse, StepWithoutBackward) {
  const auto outcomes = train_ranks(GetParam(), [](Trainer& trainer) {
    EXPECT_TRUE(trainer.train(0).committed);
    trainer.engine->step();
  });
  EXPECT_THAT(outcomes, every_rank_refuses({size() == 1   ? "[step] rank 0 called"
                                            : size() == 2 ? "[step] rank 0, 1 called"
                                                          : "[step] rank 0, 1, 2",
                                            "step() without a backward since the last step; call "
                                            "loss.backward() first. Nothing was applied."}));
}

TEST_P(StateMisuse, TrainingGoesOnAfterStepWithoutBackward) {
  const auto outcomes = train_ranks(GetParam(), [](Trainer& trainer) {
    EXPECT_THAT(outcome_of([&] { trainer.engine->step(); }), is_misuse("without a backward"));
    EXPECT_EQ(trainer.train(0).step, 1);
    parameter_hash(*trainer.engine);
  });
  EXPECT_THAT(outcomes, Each(is_fine()));
}

TEST_P(StateMisuse, StepOfTheOptimizer) {
  const auto outcomes = train_ranks(GetParam(), [](Trainer& trainer) {
    trainer.backward(0);
    trainer.engine->optimizer().step();
  });
  EXPECT_THAT(outcomes, every_rank_refuses({"[optim] step", "call engine->step()"}));
}

TEST_P(StateMisuse, StepInsideFullParameters) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.backward(0);
      auto scope = trainer.engine->full_parameters();
      if (!trainer.is_among(who)) scope.reset();
      const Ending outcome = outcome_of([&] { trainer.engine->step(); });
      EXPECT_THAT(
          outcome,
          is_misuse("step() was called while a full_parameters() or gather() scope is open; "
                    "end the scope first"));
      EXPECT_THAT(outcome, is_misuse("[step] " + refusers(who, size())));
      scope.reset();
      EXPECT_TRUE(trainer.engine->step().committed);
    });
    EXPECT_THAT(outcomes, Each(is_fine()));
  }
}

// From a hook near the loss, before this backward has given the engine any gradient: the engine is
// unchanged.
TEST_P(StateMisuse, CallsInsideBackward) {
  const std::vector<std::pair<std::string, std::function<void(Engine&)>>> calls = {
      {"step", [](Engine& engine) { engine.step(); }},
      {"zero_grad", [](Engine& engine) { engine.zero_grad(); }},
      {"modify_parameters", [](Engine& engine) { engine.modify_parameters(0, [] {}); }},
      {"full_parameters", [](Engine& engine) { auto scope = engine.full_parameters(); }},
      {"parameter_hash", [](Engine& engine) { parameter_hash(engine); }},
  };
  const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
    for (const auto& [name, call] : calls) {
      const at::Tensor squares = trainer.net->forward(trainer.input(0)).square();
      squares.register_hook([&](const at::Tensor&) { call(*trainer.engine); });
      EXPECT_THAT(outcome_of([&] { squares.mean().backward(); }),
                  is_misuse("[engine] " + name + ": called inside backward; call it after"));
    }
    EXPECT_TRUE(trainer.train(0).committed);
  });
  EXPECT_THAT(outcomes, Each(is_fine()));
}

// From a hook on a parameter, in the middle of the reductions: the engine cannot continue.
TEST_P(StateMisuse, StepInTheMiddleOfBackward) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.net->first->weight.register_hook([&](const at::Tensor&) {
        if (trainer.is_among(who)) trainer.engine->step();
      });
      trainer.backward(0);
    });
    for (int rank = 0; rank < size(); ++rank) {
      if (is_among(who, rank, size())) {
        EXPECT_THAT(outcomes[rank], is_misuse("[engine] step: called inside backward"));
      } else {
        EXPECT_THAT(outcomes[rank],
                    is_comm_error(first_of(who, size()) + " left backward by an exception"));
      }
    }
  }
}

TEST_P(StateMisuse, ModifyFromARankThatIsNone) {
  for (const int wrong : {-1, size(), 1000}) {
    for (const Who who : kAnyone) {
      SCOPED_TRACE(who);
      const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
        const int from_rank = trainer.is_among(who) ? wrong : 0;
        EXPECT_THAT(outcome_of([&] { trainer.engine->modify_parameters(from_rank, [] {}); }),
                    is_misuse(absl::StrCat(
                        "[engine] ", refusers(who, size()), ": modify_parameters: got from_rank ",
                        wrong, ", expected 0 to ", size() - 1, "; name a rank of the world")));
        EXPECT_TRUE(trainer.train(0).committed);
        trainer.engine->modify_parameters(from_rank, [] {});
      });
      // Without a catch the text is the same on all ranks.
      EXPECT_THAT(outcomes, every_rank_refuses({"modify_parameters: got from_rank "}));
    }
  }
}

TEST_P(StateMisuse, ModifyWithoutAFunction) {
  const int last = size() - 1;
  const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
    // It may be empty on other ranks.
    const auto fill = [&] { trainer.net->scale.fill_(2.0); };
    trainer.engine->modify_parameters(
        last, trainer.world->rank() == last ? std::function<void()>(fill) : nullptr);
    EXPECT_EQ(trainer.net->scale.item<float>(), 2.0F);
    trainer.engine->modify_parameters(last, nullptr);
  });
  EXPECT_THAT(outcomes, every_rank_refuses({absl::StrCat("[engine] rank ", last),
                                            "modify_parameters: got nothing to run on from_rank ",
                                            "pass a function there"}));
}

TEST_P(StateMisuse, WriterThrows) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      const Ending outcome = outcome_of([&] {
        trainer.engine->modify_parameters(0, [&] {
          if (trainer.is_among(who)) throw std::runtime_error("cannot read weights");
        });
      });
      const std::string cause =
          first_of(who, size()) + " left modify_parameters by an exception: cannot read weights";
      if (trainer.is_among(who)) {
        EXPECT_THAT(outcome, is_other("cannot read weights"));
      } else {
        EXPECT_THAT(outcome, is_comm_error(cause));
      }
      EXPECT_THAT(outcome_of([&] { trainer.engine->zero_grad(); }), is_comm_error(cause));
      trainer.train(0);
    });
    EXPECT_THAT(outcomes, every_rank_loses_contact(
                              {first_of(who, size()) + " left modify_parameters by an exception"}));
  }
}

TEST_P(StateMisuse, WriterThrowsSomethingOfNoKnownType) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      const std::string cause = first_of(who, size()) +
                                " left modify_parameters by an exception: an exception of unknown "
                                "type";
      try {
        trainer.engine->modify_parameters(0, [&] {
          if (trainer.is_among(who)) throw 42;
        });
        ADD_FAILURE() << "nothing was thrown";
      } catch (const int number) {
        EXPECT_TRUE(trainer.is_among(who) && number == 42);
      } catch (const CommError& error) {
        EXPECT_FALSE(trainer.is_among(who));
        EXPECT_THAT(error.what(), HasSubstr(cause));
      }
      EXPECT_THAT(outcome_of([&] { trainer.engine->zero_grad(); }), is_comm_error(cause));
    });
    EXPECT_THAT(outcomes, Each(is_fine()));
  }
}

/// Its peers are in a collective call and must not wait for it until they time out.
TEST_P(StateMisuseOverWholeParameters, OneRankCannotReadWhatAllSaveOrCompare) {
  struct Case {
    std::string name;
    Who who;
    std::function<void(Engine&)> call;
  };
  const std::vector<Case> cases = {
      // State that every rank has is taken from rank 0.
      {"state_dict", Who::kFirstRank,
       [](Engine& engine) { (void)engine.state_dict(StateScope::kEveryRank); }},
      {"parameter_hash", Who::kLastRank, [](Engine& engine) { parameter_hash(engine); }},
  };
  for (const auto& [name, who, call] : cases) {
    SCOPED_TRACE(name);
    const auto outcomes =
        train_ranks(GetParam(), [&, &name = name, who = who, &call = call](Trainer& trainer) {
          if (trainer.is_among(who)) {
            trainer.net->frozen.storage()
                .unsafeGetStorageImpl()
                ->release_data_and_set_meta_custom_data_ptr_error_msg_("is unreadable");
          }
          const std::string cause =
              first_of(who, size()) + " left " + name + " by an exception: is unreadable";
          const Ending outcome = outcome_of([&] { call(*trainer.engine); });
          EXPECT_THAT(outcome,
                      trainer.is_among(who) ? is_misuse("is unreadable") : is_comm_error(cause));
          EXPECT_THAT(outcome_of([&] { trainer.engine->zero_grad(); }), is_comm_error(cause));
        });
    EXPECT_THAT(outcomes, Each(is_fine()));
  }
}

TEST_P(StateMisuse, WriterThrowsWhatAnotherEngineAgreedOn) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      const std::string cause = first_of(who, size()) +
                                " left modify_parameters by an exception: [state] load_state_dict";
      const Ending outcome = outcome_of([&] {
        trainer.engine->modify_parameters(0, [&] {
          if (!trainer.is_among(who)) return;
          const auto engine = parallelize(std::make_shared<FaultNet>(), adamw(), Options(),
                                          std::make_shared<LoopbackGroup>());
          engine->load_state_dict({});
        });
      });
      EXPECT_THAT(outcome, trainer.is_among(who) ? is_misuse("does not fit this run")
                                                 : is_comm_error(cause));
      EXPECT_THAT(outcome_of([&] { trainer.engine->zero_grad(); }), is_comm_error(cause));
    });
    EXPECT_THAT(outcomes, Each(is_fine()));
  }
}

TEST_P(StateMisuse, CallsInsideAWriter) {
  using Call = std::function<void(Engine&)>;
  const std::vector<std::pair<std::string, Call>> calls = {
      {"step", [](Engine& engine) { engine.step(); }},
      {"load_state_dict", [](Engine& engine) { engine.load_state_dict({}); }},
      {"state_dict", [](Engine& engine) { (void)engine.state_dict(StateScope::kEveryRank); }},
      {"modify_parameters", [](Engine& engine) { engine.modify_parameters(0, [] {}); }},
      {"full_parameters", [](Engine& engine) { (void)engine.full_parameters(); }},
  };
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.engine->modify_parameters(0, [&] {
        EXPECT_THAT(outcome_of([&] { call(*trainer.engine); }),
                    is_misuse(name + ": called inside modify_parameters, whose function only "
                                     "writes parameters; call it afterwards"));
      });
      trainer.train(0);
    });
    EXPECT_THAT(outcomes, Each(is_fine()));
  }
}

TEST_P(StateMisuse, WriterReassignsAParameter) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.engine->modify_parameters(0, [&] {
        if (trainer.is_among(who)) trainer.net->scale.set_data(torch::zeros({}));
      });
    });
    EXPECT_THAT(outcomes, every_rank_refuses({"[engine] " + refusers(who, size()),
                                              "parameter 'scale' was re-assigned, converted or "
                                              "resized after parallelize"}));
  }
}

TEST_P(StateMisuse, BackwardOnAnotherThread) {
  const auto outcomes = train_ranks(GetParam(), [](Trainer& trainer) {
    Ending outcome;
    std::thread([&] { outcome = outcome_of([&] { trainer.backward(0); }); }).join();
    EXPECT_THAT(outcome, is_misuse("backward runs on a thread that does not know this engine"));
    EXPECT_THAT(outcome, is_misuse("call backward on the thread that called parallelize"));
    EXPECT_TRUE(trainer.train(0).committed);
  });
  EXPECT_THAT(outcomes, Each(is_fine()));
}

TEST_P(StateMisuse, GradientAssignedBeforeBackward) {
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      if (trainer.is_among(who)) trainer.net->scale.mutable_grad() = torch::ones({});
      trainer.backward(0);
    });
    for (int rank = 0; rank < size(); ++rank) {
      const char* text = "[grad] 'scale': .grad was assigned outside the engine";
      if (is_among(who, rank, size())) {
        EXPECT_THAT(outcomes[rank], is_misuse(text));
      } else {
        EXPECT_THAT(outcomes[rank], is_comm_error(first_of(who, size()) +
                                                  " left backward by an exception: " + text));
      }
    }
  }
}

TEST_P(StateMisuse, GradientReplacedAfterBackward) {
  for (const Who who : kAnyone) {
    SCOPED_TRACE(who);
    const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
      trainer.backward(0);
      if (trainer.is_among(who)) trainer.net->scale.mutable_grad() = torch::ones({});
      const Ending outcome = outcome_of([&] { trainer.engine->step(); });
      EXPECT_THAT(outcome, is_misuse("[step] " + refusers(who, size()) +
                                     ": [grad] 'scale': .grad was assigned outside the engine"));
      trainer.engine->zero_grad();
      EXPECT_TRUE(trainer.train(1).committed);
    });
    EXPECT_THAT(outcomes, Each(is_fine()));
  }
}

TEST_P(StateMisuse, TombstonesCannotBeRead) {
  const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
    trainer.backward(0);
    const at::Tensor grad = trainer.net->first->weight.grad();
    ASSERT_EQ(grad.sizes(), trainer.net->first->weight.sizes());
    const Ending read = outcome_of([&] { grad.sum(); });
    const Ending clip =
        outcome_of([&] { torch::nn::utils::clip_grad_norm_(trainer.net->parameters(), 1.0); });
    if (has_whole_gradients()) {
      EXPECT_THAT(read, is_fine());
      EXPECT_THAT(clip, is_fine());
    } else {
      EXPECT_THAT(read, is_misuse("[grad] the gradient of 'first.weight' is sharded"));
      EXPECT_THAT(clip,
                  is_misuse("StepResult::grad_norm has the norm, Options::max_grad_norm clips"));
    }
    EXPECT_TRUE(trainer.engine->step().committed);
  });
  EXPECT_THAT(outcomes, Each(is_fine()));
}

/// What LibTorch's set_to_none = false does, and equivalents that users write.
TEST_P(StateMisuse, TombstonesCannotBeZeroed) {
  const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
    at::Tensor& weight = trainer.net->first->weight;
    const std::vector<std::function<void()>> writers = {
        [&] { trainer.net->zero_grad(/*set_to_none=*/false); },
        [&] { trainer.engine->optimizer().zero_grad(/*set_to_none=*/false); },
        [&] { weight.mutable_grad().zero_(); }, [&] { weight.mutable_grad().fill_(0); }};
    for (const auto& write : writers) {
      trainer.backward(0);
      const Ending outcome = outcome_of(write);
      if (has_whole_gradients()) {
        EXPECT_THAT(outcome, is_fine());
      } else {
        EXPECT_THAT(outcome, is_misuse("engine->zero_grad() drops it"));
      }
      trainer.engine->zero_grad();
      EXPECT_TRUE(trainer.train(1).committed);
    }
  });
  EXPECT_THAT(outcomes, Each(is_fine()));
}

TEST_P(StateMisuse, LocalSumsCannotBeRead) {
  const auto outcomes = train_ranks(GetParam(), [&](Trainer& trainer) {
    const auto scope = trainer.engine->no_sync();
    trainer.backward(0);
    EXPECT_THAT(outcome_of([&] { trainer.net->scale.grad().item(); }),
                is_misuse("[grad] the gradient of 'scale' is sharded or not reduced yet"));
  });
  EXPECT_THAT(outcomes, Each(is_fine()));
}

}  // namespace
}  // namespace tessera::internal::testing
