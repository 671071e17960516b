#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/same_bits.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/support/state_streams.h"
#include "tessera/tests/zero/engine/engine_fixture.h"

// Engine::begin_average(): the model is the average of its weights until the scope ends, however it
// ends.

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr const char* kInside =
    "called inside begin_average(), where the model is the average of its weights; call end() of "
    "its scope";

class AverageScopes : public EngineTest {
 protected:
  Options averaging_options() const {
    Options options = small_options_of(configuration());
    options.average = WeightAverage{.decay = 0.9};
    return options;
  }
  void on_averaging_ranks(const std::function<void(OddRank&)>& body) const {
    run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
      OddRank rank(std::move(world), averaging_options());
      for (int step = 0; step < 3; ++step) rank.train(step);
      body(rank);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(, AverageScopes, configurations_and_worlds(), name_of);

std::map<std::string, at::Tensor> whole_copy(OddRank& rank) {
  const auto whole = rank.engine->full_parameters();
  return copy_parameters(*rank.net);
}

TEST_P(AverageScopes, ShowTheAverageToAllReadersAndGiveTheValuesBack) {
  on_averaging_ranks([](OddRank& rank) {
    Engine& engine = *rank.engine;
    const uint64_t live_hash = parameter_hash(engine);
    const auto live = whole_copy(rank);
    const StateDict state = engine.state_dict(StateScope::kEveryRank);
    const double live_loss = rank.loss(7).item<double>();

    Engine::AverageScope scope = engine.begin_average();
    EXPECT_NE(parameter_hash(engine), live_hash);
    const auto shown = whole_copy(rank);
    for (const auto& [name, values] : shown) {
      EXPECT_TRUE(
          have_same_bits(values, state.entries.at("optimizer." + name + ".average").tensor()))
          << name;
    }
    // A plain model with these values computes the same.
    const std::shared_ptr<Net> plain = make_net();
    const at::NoGradGuard no_grad;
    for (const auto& entry : plain->named_parameters()) entry.value().copy_(shown.at(entry.key()));
    EXPECT_EQ(rank.loss(7).item<double>(), loss_on(*plain, rank.world->rank(), 7).item<double>());
    EXPECT_NE(rank.loss(7).item<double>(), live_loss);
    {
      const auto gathered = engine.gather(*rank.net);
      EXPECT_EQ(bit_differences(copy_parameters(*rank.net), shown), "");
    }
    scope.end();

    EXPECT_EQ(parameter_hash(engine), live_hash);
    EXPECT_EQ(bit_differences(whole_copy(rank), live), "");
    EXPECT_EQ(rank.loss(7).item<double>(), live_loss);
  });
}

TEST_P(AverageScopes, RefuseWhatWouldUseTheShownValuesAsTheRunsOwn) {
  on_averaging_ranks([](OddRank& rank) {
    Engine& engine = *rank.engine;
    const uint64_t before = parameter_hash(engine);
    const StateDict state = engine.state_dict(StateScope::kEveryRank);
    Engine::AverageScope scope = engine.begin_average();
    const uint64_t shown = parameter_hash(engine);
    const auto refuses = [&](const char* call, const std::function<void()>& body) {
      const std::string message = message_of(body);
      EXPECT_THAT(message, AllOf(HasSubstr(call), HasSubstr(kInside)));
      EXPECT_EQ(parameter_hash(engine), shown);
    };
    StateCollector sink;
    StateReader source(state);
    refuses("step: ", [&] { engine.step(); });
    refuses("modify_parameters: ", [&] { engine.modify_parameters(0, [] {}); });
    refuses("state_dict: ", [&] { auto saved = engine.state_dict(StateScope::kSharded); });
    refuses("write_state: ", [&] { engine.write_state(sink); });
    refuses("read_state: ", [&] { engine.read_state(source); });
    refuses("accumulate: ", [&] { engine.accumulate({}); });
    refuses("load_state_dict: ", [&] { engine.load_state_dict(state); });
    refuses("begin_average: ", [&] { engine.begin_average().end(); });
    EXPECT_THAT(message_of([&] { rank.backward(3); }),
                HasSubstr("[engine] backward: called inside begin_average()"));
    scope.end();
    EXPECT_EQ(parameter_hash(engine), before);
    for (int step = 3; step < 5; ++step) EXPECT_TRUE(rank.train(step).committed);
  });
}

TEST_P(AverageScopes, ThatAreDroppedEndWithTheNextCollectiveCall) {
  std::vector<std::map<std::string, at::Tensor>> ends(static_cast<size_t>(size()));
  const auto run = [&](const std::function<void(OddRank&)>& between) {
    on_averaging_ranks([&](OddRank& rank) {
      between(rank);
      rank.train(3);
      ends[static_cast<size_t>(rank.world->rank())] = whole_copy(rank);
    });
    return ends[0];
  };
  const auto expected = run([](OddRank&) {});
  const std::vector<std::pair<const char*, std::function<void(OddRank&)>>> calls = {
      {"full_parameters", [](OddRank& rank) { const auto whole = rank.engine->full_parameters(); }},
      {"parameter_hash", [](OddRank& rank) { parameter_hash(*rank.engine); }},
      {"state_dict",
       [](OddRank& rank) { auto state = rank.engine->state_dict(StateScope::kSharded); }},
      {"modify_parameters", [](OddRank& rank) { rank.engine->modify_parameters(0, [] {}); }},
      {"begin_average", [](OddRank& rank) { rank.engine->begin_average().end(); }}};
  for (const auto& named : calls) {
    const std::function<void(OddRank&)>& call = named.second;
    EXPECT_EQ(bit_differences(run([&call](OddRank& rank) {
                                const uint64_t live = parameter_hash(*rank.engine);
                                {
                                  const Engine::AverageScope scope = rank.engine->begin_average();
                                  EXPECT_NE(parameter_hash(*rank.engine), live);
                                }
                                call(rank);
                                EXPECT_EQ(parameter_hash(*rank.engine), live);
                              }),
                              expected),
              "")
        << named.first;
  }
}

TEST_P(AverageScopes, KeepTheGradientsOfBefore) {
  std::optional<std::map<std::string, at::Tensor>> expected;
  for (const bool looks : {false, true}) {
    std::vector<std::map<std::string, at::Tensor>> ends(static_cast<size_t>(size()));
    on_averaging_ranks([&](OddRank& rank) {
      {
        const auto local = rank.engine->no_sync();
        rank.backward(3);
      }
      if (looks) rank.engine->begin_average().end();
      rank.backward(4);
      if (looks) {  // dropped without end(): step() ends it
        const Engine::AverageScope scope = rank.engine->begin_average();
      }
      EXPECT_TRUE(rank.engine->step().committed);
      ends[static_cast<size_t>(rank.world->rank())] = whole_copy(rank);
    });
    if (!expected.has_value()) expected = ends[0];
    EXPECT_EQ(bit_differences(ends[0], *expected), "");
  }
}

/// An evaluation that fails on one rank only, which continues.
TEST_P(AverageScopes, MayBeLeftByAnExceptionOnOneRank) {
  on_averaging_ranks([this](OddRank& rank) {
    const uint64_t before = parameter_hash(*rank.engine);
    try {
      Engine::AverageScope scope = rank.engine->begin_average();
      if (rank.world->rank() == size() - 1) throw std::runtime_error("out of range");
      scope.end();
    } catch (const std::runtime_error&) {
      // The others are in end(); this rank joins them in its next call.
    }
    EXPECT_EQ(parameter_hash(*rank.engine), before);
    EXPECT_TRUE(rank.train(3).committed);
  });
}

TEST_P(AverageScopes, ThatOneRankHasDroppedAndOthersHaveNotAreAnErrorOfAll) {
  if (size() == 1) return;
  on_averaging_ranks([](OddRank& rank) {
    const uint64_t before = parameter_hash(*rank.engine);
    std::optional<Engine::AverageScope> scope = rank.engine->begin_average();
    if (rank.world->rank() == 0) scope.reset();
    for (int repeat = 0; repeat < 2; ++repeat) {
      EXPECT_THAT([&] { parameter_hash(*rank.engine); },
                  ThrowsMessage<c10::Error>(AllOf(HasSubstr("rank"), HasSubstr(kInside))));
    }
    scope.reset();
    EXPECT_EQ(parameter_hash(*rank.engine), before);
  });
}

TEST_P(AverageScopes, ThatOneRankHasDroppedInsideAScopeOfWholeParametersAreAnErrorOfAll) {
  if (size() == 1) return;
  on_averaging_ranks([](OddRank& rank) {
    const uint64_t before = parameter_hash(*rank.engine);
    std::optional<Engine::AverageScope> scope = rank.engine->begin_average();
    {
      const auto whole = rank.engine->full_parameters();
      if (rank.world->rank() == 0) scope.reset();
      EXPECT_THAT([&] { parameter_hash(*rank.engine); },
                  ThrowsMessage<c10::Error>(
                      AllOf(HasSubstr(kInside), HasSubstr("called while a full_parameters()"))));
    }
    scope.reset();
    EXPECT_EQ(parameter_hash(*rank.engine), before);
  });
}

TEST_P(AverageScopes, DoNotEndInsideAScopeOfWholeParameters) {
  on_averaging_ranks([](OddRank& rank) {
    const uint64_t before = parameter_hash(*rank.engine);
    {
      const auto whole = rank.engine->full_parameters();
      EXPECT_THAT([&] { rank.engine->begin_average().end(); },
                  ThrowsMessage<c10::Error>(
                      HasSubstr("begin_average: called while a full_parameters() or gather()")));
    }
    Engine::AverageScope scope = rank.engine->begin_average();
    {
      const auto whole = rank.engine->full_parameters();
      EXPECT_THAT([&] { scope.end(); },
                  ThrowsMessage<c10::Error>(HasSubstr(
                      "the end of begin_average()'s scope: called while a full_parameters()")));
    }
    scope.end();
    EXPECT_THAT([&] { scope.end(); }, ThrowsMessage<c10::Error>(HasSubstr("has ended")));
    EXPECT_EQ(parameter_hash(*rank.engine), before);
  });
}

TEST_P(AverageScopes, NeedAnAverage) {
  run_ranks(size(), [this](const std::shared_ptr<ProcessGroup>& world) {
    Options options = small_options_of(configuration());
    const OddRank without(world, options);
    without.train(0);
    EXPECT_THAT([&] { without.engine->begin_average().end(); },
                ThrowsMessage<c10::Error>(HasSubstr("keeps no average of the weights; set")));
    options.average = WeightAverage{.start_step = 2};
    const OddRank rank(world, options);
    rank.train(0);
    EXPECT_THAT([&] { rank.engine->begin_average().end(); },
                ThrowsMessage<c10::Error>(HasSubstr(
                    "got an average of no step after 1 steps, expected at least one; the first is "
                    "step 2")));
    rank.train(1);
    const uint64_t live = parameter_hash(*rank.engine);
    Engine::AverageScope scope = rank.engine->begin_average();
    EXPECT_EQ(parameter_hash(*rank.engine), live) << "the first values are the average";
    scope.end();
  });
}

TEST_P(AverageScopes, OutliveTheEngineWithoutHarm) {
  on_averaging_ranks([this](OddRank& rank) {
    Engine::AverageScope scope = rank.engine->begin_average();
    const auto shown = whole_copy(rank);
    rank.engine.reset();
    if (!splits_parameters()) {
      EXPECT_EQ(bit_differences(copy_parameters(*rank.net), shown), "");
    }
    EXPECT_THAT([&] { scope.end(); }, ThrowsMessage<c10::Error>(HasSubstr("the engine is gone")));
  });
}

using AverageScopesOfWholeParameters = AverageScopes;
INSTANTIATE_TEST_SUITE_P(, AverageScopesOfWholeParameters,
                         configurations_and_worlds(&Setting::has_whole_parameters), name_of);

at::Tensor first_parameter(OddRank& rank) { return rank.net->parameters().front(); }

TEST_P(AverageScopesOfWholeParameters, AreNotBegunOverAWrite) {
  on_averaging_ranks([](OddRank& rank) {
    {
      const at::NoGradGuard no_grad;
      if (rank.world->rank() == 0) first_parameter(rank).add_(1.0);
    }
    EXPECT_THAT([&] { rank.engine->begin_average().end(); },
                ThrowsMessage<c10::Error>(AllOf(HasSubstr("rank 0: parameter 'layer0.weight'"),
                                                HasSubstr("was written outside"))));
    rank.engine->modify_parameters(0, [] {});
    rank.engine->begin_average().end();
  });
}

TEST_P(AverageScopesOfWholeParameters, AWriteInsideIsFoundAtTheEnd) {
  on_averaging_ranks([](OddRank& rank) {
    const StateDict state = rank.engine->state_dict(StateScope::kEveryRank);
    Engine::AverageScope scope = rank.engine->begin_average();
    {
      const at::NoGradGuard no_grad;
      if (rank.world->rank() == 0) first_parameter(rank).add_(1.0);
    }
    const auto lost = ThrowsMessage<c10::Error>(
        AllOf(HasSubstr("'layer0.weight' was written inside begin_average()"),
              HasSubstr("engine->load_state_dict() an earlier state")));
    EXPECT_THAT([&] { scope.end(); }, lost);
    EXPECT_THAT([&] { rank.engine->step(); }, lost);
    rank.engine->load_state_dict(state);
    EXPECT_EQ(bit_differences(rank.engine->state_dict(StateScope::kEveryRank), state), "");
    EXPECT_TRUE(rank.train(3).committed);
  });
}

}  // namespace
}  // namespace tessera::internal::testing
