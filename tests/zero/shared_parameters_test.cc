#include "tessera/zero/shared_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/forwarding_group.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/zero/engine_fixture.h"

// Where ranks have one copy of the parameters: what one rank does to it reaches the others through
// the engine only.

namespace tessera::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

/// A model whose first weight spans pages of several parameters' worth.
std::shared_ptr<Net> make_wide() {
  torch::manual_seed(5);
  return prepare(subject("DeepMlp").make(), at::kFloat, 5);
}

class SharedParametersTest : public EngineTest {};

/// modify_parameters with a function that is not idempotent, on every rank: one rank's values
/// count, once.
TEST_P(SharedParametersTest, AreModifiedOnceByAFunctionThatAllRanksRun) {
  on_ranks([](Rank& rank) {
    const auto before = copy_parameters(*rank.net);
    rank.engine->modify_parameters(0, [&] {
      for (const at::Tensor& parameter : rank.net->parameters()) parameter.mul_(2);
    });
    auto expected = before;
    for (auto& [name, value] : expected) value = value * 2;
    const auto whole = rank.engine->full_parameters();
    EXPECT_EQ(bit_differences(copy_parameters(*rank.net), expected), "");
  });
}

TEST_P(SharedParametersTest, TrainOnAfterTheyWereModified) {
  std::map<std::string, at::Tensor> expected, got;
  const auto train = [&](const Row& row, std::map<std::string, at::Tensor>& result) {
    run_ranks(size(), [&](std::shared_ptr<ProcessGroup> group) {
      Rank rank(std::move(group), row);
      rank.train(0);
      rank.engine->modify_parameters(0, [&] {
        for (const at::Tensor& parameter : rank.net->parameters()) parameter.mul_(1.5);
      });
      rank.train(1);
      rank.train(2);
      const auto whole = rank.engine->full_parameters();
      if (rank.world->rank() == 0) result = copy_parameters(*rank.net);
    });
  };
  train(apart(row()), expected);
  train(row(), got);
  EXPECT_EQ(bit_differences(got, expected), "");
}

/// When the engine is gone, each rank's model is its own again.
TEST_P(SharedParametersTest, BelongToEachRankAfterTheEngineIsGone) {
  if (splits_parameters()) return;  // nobody can read them then
  on_ranks([](Rank& rank) {
    rank.train(0);
    const auto before = copy_parameters(*rank.net);
    rank.engine.reset();
    rank.world->barrier("engines gone");
    {
      const torch::NoGradGuard no_grad;
      for (const at::Tensor& parameter : rank.net->parameters()) {
        parameter.add_(rank.world->rank() + 1);
      }
    }
    rank.world->barrier("written");
    auto expected = before;
    for (auto& [name, value] : expected) value = value + (rank.world->rank() + 1);
    EXPECT_EQ(bit_differences(copy_parameters(*rank.net), expected), "");
  });
}

std::vector<std::pair<Row, int>> sharing_rows() {
  return {{row_of(Strategy::kZero1), 2}, {row_of(Strategy::kZero2), 3},
          {row_of(Strategy::kZero3), 3}, {hybrid(1, 2, 2), 4},
          {hybrid(2, 2, 2), 4},          {hybrid(1, 2, 4), 4}};
}

INSTANTIATE_TEST_SUITE_P(, SharedParametersTest, ::testing::ValuesIn(sharing_rows()), &name_of);

/// Writes element `element` of a parameter on one rank by way of .data(), which has a version
/// counter of its own. Returns what the step then says on each rank.
std::vector<std::string> errors_after_write(const Row& row, int writer, size_t parameter,
                                            int64_t element) {
  return run_ranks_expecting_errors(3, [&](std::shared_ptr<ProcessGroup> world) {
    const auto net = make_wide();
    const auto engine = parallelize(net, adamw(), options_of(row), world);
    const auto backward = [&](int step) {
      const Moment moment{.step = step, .rank = world->rank()};
      const Schedule schedule{.name = ""};
      loss_of(*net, batch_of(subject("DeepMlp"), at::kFloat, schedule, moment, 0), moment, schedule)
          .backward();
    };
    backward(0);
    engine->step();
    const at::Tensor target = net->parameters()[parameter];
    if (world->rank() == writer) target.data().view({-1})[element].add_(1);
    backward(1);
    engine->step();
  });
}

/// Beyond the first 64 elements, which are all that is compared where nothing is shared.
TEST(SharedParameters, EveryStrayWriteIsFoundAndNamed) {
  const auto net = make_wide();
  const auto named = net->named_parameters();
  for (size_t i = 0; i < named.size(); ++i) {
    const int64_t numel = named[i].value().numel();
    if (numel < 70) continue;
    const auto errors = errors_after_write(row_of(Strategy::kZero2), 1, i, numel - 1);
    EXPECT_THAT(errors, Each(HasSubstr("rank 1")));
    EXPECT_THAT(errors, Each(HasSubstr("parameter '" + named[i].key() +
                                       "' was written outside engine->modify_parameters()")));
    break;
  }
}

TEST(SharedParameters, AStrayWriteHarmsNoOtherRank) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> world) {
    const auto net = make_net();
    const auto engine =
        parallelize(net, adamw(), small_options_of(row_of(Strategy::kZero1)), world);
    const auto before = copy_parameters(*net);
    world->barrier("copied");
    if (world->rank() == 0) {
      const torch::NoGradGuard no_grad;
      for (const at::Tensor& parameter : net->parameters()) parameter.fill_(9);
    }
    world->barrier("written");
    EXPECT_EQ(bit_differences(copy_parameters(*net), before) == "", world->rank() == 1);
    // What rank 1 holds becomes everybody's again.
    engine->modify_parameters(1, [] {});
    EXPECT_EQ(bit_differences(copy_parameters(*net), before), "");
  });
}

/// Drops the barrier after an update and lets rank 0 come out of its step before rank 1 has begun
/// to update.
class HastyGroup final : public ForwardingGroup {
 public:
  HastyGroup(std::shared_ptr<ProcessGroup> inner, std::shared_future<void> may_update)
      : ForwardingGroup(std::move(inner)), may_update_(std::move(may_update)) {}

  std::shared_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   std::string_view tag) override {
    auto work = inner_->all_gather(output, input, tag);
    work->wait();
    if (rank() == 1 && tag == "vote of the step") may_update_.wait();
    return work;
  }
  void barrier(std::string_view tag) override {
    if (tag != "parameters published") inner_->barrier(tag);
  }
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override {
    auto made = inner_->subgroup(ranks, name);
    return made == nullptr ? nullptr : std::make_shared<HastyGroup>(std::move(made), may_update_);
  }

 private:
  const std::shared_future<void> may_update_;
};

/// The negative control: without the barrier a rank sees parameters of which a part is old.
TEST(SharedParameters, WithoutTheBarrierOldValuesWouldBeSeen) {
  for (const Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kZero3}) {
    std::promise<void> rank0_looked;
    const std::shared_future<void> may_update = rank0_looked.get_future().share();
    run_ranks(2, [&](std::shared_ptr<ProcessGroup> world) {
      const auto group = std::make_shared<HastyGroup>(world, may_update);
      const auto net = make_net();
      const auto engine = parallelize(net, adamw(), small_options_of(row_of(strategy)), group);
      loss_on(*net, world->rank(), 0).backward();
      engine->step();
      std::map<std::string, at::Tensor> early;
      if (world->rank() == 0) {
        const auto module = engine->gather(*net);
        early = copy_parameters(*net);
        rank0_looked.set_value();
      }
      world->barrier("both have stepped");
      const auto module = engine->gather(*net);
      if (world->rank() == 0) {
        EXPECT_NE(bit_differences(early, copy_parameters(*net)), "");
      }
    });
  }
}

}  // namespace
}  // namespace tessera::testing
