#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/tests/fsdp/access_fixture.h"
#include "tessera/tests/support/group_without_windows.h"
#include "tessera/tests/support/held_operator.h"

// Operators of other threads that run while the values of a unit change: they read old values until
// they end, and no other operator gets these.

namespace tessera::internal::testing {
namespace {

using at::Tensor;

/// A split rank, and a ddp rank trained in the same way that has the expected parameters.
struct RankWithTruth : SplitRank {
  RankWithTruth(const std::shared_ptr<ProcessGroup>& group, const Configuration& configuration)
      : SplitRank(group, configuration),
        truth(parallelize(plain, torch::optim::AdamWOptions(0.02).eps(1e-6),
                          options_of(configuration_of(Strategy::kDdp)), group)) {}

  void backward(int step) const {
    model->forward(input(step)).square().mean().backward();
    plain->forward(input(step)).square().mean().backward();
  }
  void step() const {
    engine->step();
    truth->step();
  }
  void train_both(int number) const {
    backward(number);
    step();
  }

  std::unique_ptr<Engine> truth;
};

/// Names of parameters whose values differ, as operators read them.
std::string differences(const TwoLayers& model, const TwoLayers& plain) {
  const at::NoGradGuard no_grad;
  std::string names;
  const auto expected = plain.named_parameters();
  for (const auto& parameter : model.named_parameters()) {
    if (!at::equal(parameter.value(), expected[parameter.key()])) names += parameter.key() + " ";
  }
  return names;
}

std::string differences(const StateDict& state, const TwoLayers& plain) {
  std::string names;
  for (const auto& parameter : plain.named_parameters()) {
    if (!at::equal(state.entries.at("model." + parameter.key()).tensor(),
                   parameter.value().detach())) {
      names += parameter.key() + " ";
    }
  }
  return names;
}

/// Ways to read parameters, each of which may be the first after a change.
using Reading = std::function<std::string(const RankWithTruth&)>;
const std::vector<std::pair<std::string, Reading>>& readings() {
  static const std::vector<std::pair<std::string, Reading>> all = {
      {"operators",
       [](const RankWithTruth& rank) { return differences(*rank.model, *rank.plain); }},
      {"full_parameters",
       [](const RankWithTruth& rank) {
         const auto scope = rank.engine->full_parameters();
         std::string names;
         const auto expected = rank.plain->named_parameters();
         for (const auto& parameter : rank.model->named_parameters()) {
           const auto* data = parameter.value().const_data_ptr<float>();
           const auto* right = expected[parameter.key()].const_data_ptr<float>();
           if (!std::equal(data, data + parameter.value().numel(), right)) {
             names += parameter.key() + " ";
           }
         }
         return names;
       }},
      {"gather",
       [](const RankWithTruth& rank) {
         const auto scope = rank.engine->gather(*rank.model);
         return differences(*rank.model, *rank.plain);
       }},
      {"state_dict",
       [](const RankWithTruth& rank) {
         return differences(rank.engine->state_dict(StateScope::kEveryRank, 0), *rank.plain);
       }},
      {"parameter_hash",
       [](const RankWithTruth& rank) -> std::string {
         return parameter_hash(*rank.engine) == parameter_hash(*rank.truth) ? "" : "hash";
       }},
      {"training",
       [](const RankWithTruth& rank) {
         rank.train_both(7);
         return differences(*rank.model, *rank.plain);
       }},
  };
  return all;
}

/// Reads in every way, starting with `first`.
void expect_present(const RankWithTruth& rank, size_t first) {
  for (size_t i = 0; i < readings().size(); ++i) {
    const auto& [name, read] = readings()[(first + i) % readings().size()];
    EXPECT_EQ(read(rank), "") << "old values are seen by " << name;
  }
}

Configuration updating_in_backward() {
  Configuration configuration = apart(configuration_of(Strategy::kZero3));
  configuration.optimizer_in_backward = true;
  return configuration;
}

Configuration poisoned(Configuration configuration) {
  configuration.poison_freed = true;
  return configuration;
}

struct ReadingCase {
  std::string name;
  int size;
  Configuration configuration;
  bool has_windows = true;  // otherwise gathers are collective, and ranks use units alike
};

std::ostream& operator<<(std::ostream& out, const ReadingCase& at) { return out << at.name; }

class OldValues : public ::testing::TestWithParam<ReadingCase> {
 protected:
  static void on_ranks(const std::function<void(RankWithTruth&)>& body) {
    RankThreadOptions options;
    if (GetParam().configuration.prefetch.value_or(false))
      options.lane = ProcessGroupOptions::Lane::kThread;
    run_ranks(
        GetParam().size,
        [&](std::shared_ptr<ProcessGroup> group) {
          if (!GetParam().has_windows) group = std::make_shared<GroupWithoutWindows>(group);
          RankWithTruth rank(group, GetParam().configuration);
          body(rank);
        },
        options);
  }
};

TEST_P(OldValues, AreReadByTheOperatorThatHoldsThemAndByNobodyElse) {
  for (size_t first = 0; first < readings().size(); ++first) {
    SCOPED_TRACE("first " + readings()[first].first);
    on_ranks([first](RankWithTruth& rank) {
      rank.train_both(0);
      if (rank.world->rank() != 0 && GetParam().has_windows) {
        rank.train_both(1);
        expect_present(rank, first);
        return;
      }
      HeldOperator weight(rank.model->first->weight);
      HeldOperator scale(rank.model->scale);
      const Tensor held_weight = weight.look();
      const Tensor held_scale = scale.look();
      rank.train_both(1);
      expect_present(rank, first);
      EXPECT_TRUE(at::equal(weight.look(), held_weight));
      EXPECT_TRUE(at::equal(scale.look(), held_scale));
      EXPECT_TRUE(at::equal(weight.end(), held_weight));
      EXPECT_TRUE(at::equal(scale.end(), held_scale));
      EXPECT_EQ(differences(*rank.model, *rank.plain), "");
    });
  }
}

/// An operator may last longer than a step, and others may begin after it and end before it.
TEST_P(OldValues, OfSeveralStepsAreKeptApart) {
  on_ranks([](RankWithTruth& rank) {
    std::vector<std::unique_ptr<HeldOperator>> held;
    std::vector<Tensor> values;
    for (int step = 0; step < 4; ++step) {
      values.push_back(rank.plain->first->weight.detach().clone());
      held.push_back(std::make_unique<HeldOperator>(rank.model->first->weight));
      rank.train_both(step);
    }
    EXPECT_EQ(differences(*rank.model, *rank.plain), "");
    for (const size_t next : {1, 3, 0, 2}) {
      EXPECT_TRUE(at::equal(held[next]->end(), values[next])) << next;
      rank.train_both(static_cast<int>(next) + 4);
      EXPECT_EQ(differences(*rank.model, *rank.plain), "");
    }
  });
}

/// An operator that began before a step may ask for its address at any time, even after the unit
/// was filled with new values and other units were used.
TEST_P(OldValues, NeverLeaveAnOperatorWithoutMemory) {
  on_ranks([](RankWithTruth& rank) {
    rank.train_both(0);
    HeldOperator held(rank.model->first->weight);
    for (int step = 1; step < 4; ++step) {
      rank.train_both(step);
      EXPECT_EQ(differences(*rank.model, *rank.plain), "");
      EXPECT_NO_THROW(rank.model->first->weight.const_data_ptr()) << "step " << step;
    }
    held.end();
    EXPECT_EQ(differences(*rank.model, *rank.plain), "");
  });
}

/// The memory is freed when the operators end, and reused in the next step.
TEST_P(OldValues, TakeMemoryOnlyUntilTheirOperatorsEnd) {
  on_ranks([](RankWithTruth& rank) {
    rank.train_both(0);
    const auto run = [&](int step) {
      HeldOperator weight(rank.model->first->weight);
      HeldOperator scale(rank.model->scale);
      rank.train_both(step);
      EXPECT_EQ(differences(*rank.model, *rank.plain), "");
    };
    run(1);
    const int64_t unsharded_buffers_added = rank.engine->gather_counts().unsharded_buffers_added;
    const MemoryBytes after_one = rank.engine->memory().now();
    for (int step = 2; step < 6; ++step) run(step);
    rank.train_both(6);
    EXPECT_EQ(rank.engine->gather_counts().unsharded_buffers_added, unsharded_buffers_added);
    EXPECT_EQ(rank.engine->memory().now()[MemoryClass::kUnshardedParameters],
              after_one[MemoryClass::kUnshardedParameters]);
    EXPECT_EQ(rank.engine->memory().now()[MemoryClass::kRoot], after_one[MemoryClass::kRoot]);
    const GatherCounts counts = rank.engine->gather_counts();
    EXPECT_EQ(counts.gathers, counts.frees) << "a unit is still whole after the step";
  });
}

TEST_P(OldValues, AreNotKeptForFreshByModifyParametersAndLoadedState) {
  on_ranks([](RankWithTruth& rank) {
    rank.train_both(0);
    const StateDict early = rank.engine->state_dict(StateScope::kEveryRank, 0);
    rank.train_both(1);
    const Tensor before = rank.plain->first->weight.detach().clone();
    const auto halve = [](const TwoLayers& model) {
      for (const Tensor& parameter : model.parameters()) parameter.mul_(0.5);
    };
    HeldOperator held(rank.model->first->weight);
    rank.engine->modify_parameters(0, [&] { halve(*rank.model); });
    rank.truth->modify_parameters(0, [&] { halve(*rank.plain); });
    EXPECT_EQ(differences(*rank.model, *rank.plain), "");
    EXPECT_TRUE(at::equal(held.look(), before));

    HeldOperator later(rank.model->scale);
    const Tensor scale = later.look();
    rank.engine->load_state_dict(early);
    rank.truth->load_state_dict(early);
    EXPECT_EQ(differences(*rank.model, *rank.plain), "");
    EXPECT_TRUE(at::equal(held.end(), before));
    EXPECT_TRUE(at::equal(later.end(), scale));
    rank.train_both(2);
    EXPECT_EQ(differences(*rank.model, *rank.plain), "");
  });
}

TEST_P(OldValues, OutliveTheEngineWhileAnOperatorReadsThem) {
  on_ranks([](RankWithTruth& rank) {
    rank.train_both(0);
    const Tensor weight_values = rank.plain->first->weight.detach().clone();
    const Tensor scale_values = rank.plain->scale.detach().clone();
    HeldOperator older(rank.model->first->weight);
    rank.train_both(1);
    const Tensor weight_values_now = rank.plain->first->weight.detach().clone();
    HeldOperator weight(rank.model->first->weight);
    HeldOperator scale(rank.model->scale);
    const Tensor scale_values_now = rank.plain->scale.detach().clone();
    rank.engine.reset();
    EXPECT_TRUE(at::equal(weight.look(), weight_values_now));
    EXPECT_TRUE(at::equal(scale.look(), scale_values_now));
    const at::NoGradGuard no_grad;
    EXPECT_THAT([&] { rank.model->first->weight.sum(); },
                ::testing::ThrowsMessage<c10::Error>(
                    ::testing::HasSubstr("the engine that could gather them is gone")));
    EXPECT_TRUE(at::equal(older.end(), weight_values));
    EXPECT_TRUE(at::equal(weight.end(), weight_values_now));
    EXPECT_TRUE(at::equal(scale.end(), scale_values_now));
  });
}

std::vector<ReadingCase> cases() {
  const Configuration zero3 = poisoned(apart(configuration_of(Strategy::kZero3)));
  Configuration prefetching = zero3;
  prefetching.prefetch = true;
  return {
      {"World2", 2, zero3},
      {"World3", 3, zero3},
      {"Prefetching", 3, prefetching},
      {"WholeAfterForward", 3, poisoned(resharding(1))},
      {"SecondShards", 4, poisoned(resharding(2))},
      {"FreedEagerly", 3, hostile(apart(configuration_of(Strategy::kZero3)))},
      {"UpdatedInBackward", 2, poisoned(updating_in_backward())},
      {"GatheredTogether", 3, zero3, /*has_windows=*/false},
  };
}

INSTANTIATE_TEST_SUITE_P(, OldValues, ::testing::ValuesIn(cases()),
                         [](const auto& at) { return at.param.name; });

// --- Operators during the step ---

/// Calls a function before the ranks vote, in the middle of the step.
class GroupWithPause final : public ForwardingGroup {
 public:
  GroupWithPause(std::shared_ptr<ProcessGroup> inner, std::function<void()>* before_vote)
      : ForwardingGroup(std::move(inner)), before_vote_(before_vote) {}

  std::shared_ptr<Work> run(const Collective& collective) override {
    const bool is_vote = collective.tag == "vote of the step";
    if (is_vote && *before_vote_) (*before_vote_)();
    return inner_->run(collective);
  }

 protected:
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override {
    return std::make_shared<GroupWithPause>(std::move(inner), before_vote_);
  }

 private:
  std::function<void()>* const before_vote_;
};

/// Not allowed, but possible: what was gathered in the middle of a step is not reused.
TEST(OldValuesOfAStep, AreNotKeptWhenAnOperatorReadsDuringTheStep) {
  for (const Configuration& configuration :
       {apart(configuration_of(Strategy::kZero3)), resharding(1)}) {
    run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& group) {
      std::function<void()> during_step;
      const auto world = std::make_shared<GroupWithPause>(group, &during_step);
      RankWithTruth rank(world, configuration);
      rank.train_both(0);
      rank.backward(1);
      int64_t reads = 0;
      during_step = [&] {
        const at::NoGradGuard no_grad;
        rank.model->first->weight.sum();
        rank.model->scale.sum();
        ++reads;
      };
      rank.engine->step();
      during_step = nullptr;
      rank.truth->step();
      EXPECT_EQ(reads, 1);
      EXPECT_EQ(differences(*rank.model, *rank.plain), "");
      rank.train_both(2);
      EXPECT_EQ(differences(*rank.model, *rank.plain), "");
    });
  }
}

}  // namespace
}  // namespace tessera::internal::testing
