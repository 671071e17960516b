#include "tessera/zero/parameters/shared_parameters.h"

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

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/errors.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/zero/engine/engine_fixture.h"

// Ranks that share one copy of the parameters: one rank's changes reach the others only through the
// engine.

namespace tessera::internal::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

/// A model whose first weight spans several pages.
std::shared_ptr<Net> make_wide() {
  torch::manual_seed(5);
  return prepare(subject("DeepMlp").make(), at::kFloat, 5);
}

class SharedParametersTest : public EngineTest {};
// Without configurations whose parameters throw when read.
class WholeSharedParametersTest : public EngineTest {};

/// Every rank calls modify_parameters() with a function that is not idempotent: one rank's values
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
  const auto train = [&](const Configuration& configuration,
                         std::map<std::string, at::Tensor>& result) {
    run_ranks(size(), [&](std::shared_ptr<ProcessGroup> group) {
      Rank rank(std::move(group), configuration);
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
  train(apart(configuration()), expected);
  train(configuration(), got);
  EXPECT_EQ(bit_differences(got, expected), "");
}

/// After the engine is destroyed, each rank's model has its own memory again.
TEST_P(WholeSharedParametersTest, BelongToEachRankAfterTheEngineIsGone) {
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

std::vector<std::pair<Configuration, int>> sharing_configurations() {
  return {{configuration_of(Strategy::kZero1), 2},
          {configuration_of(Strategy::kZero2), 3},
          {configuration_of(Strategy::kZero3), 3},
          {hybrid(1, 2, 2), 4},
          {hybrid(2, 2, 2), 4},
          {hybrid(1, 2, 4), 4}};
}

INSTANTIATE_TEST_SUITE_P(, SharedParametersTest, ::testing::ValuesIn(sharing_configurations()),
                         &name_of);

std::vector<std::pair<Configuration, int>> whole_sharing_configurations() {
  std::vector<std::pair<Configuration, int>> whole = sharing_configurations();
  std::erase_if(whole, [](const auto& setting) { return setting.first.splits_parameters(); });
  return whole;
}

INSTANTIATE_TEST_SUITE_P(, WholeSharedParametersTest,
                         ::testing::ValuesIn(whole_sharing_configurations()), &name_of);

/// Writes an element of a parameter on one rank through .data(), which has its own version counter.
/// Returns each rank's error in the next step.
std::vector<std::string> errors_after_write(const Configuration& configuration, int writer,
                                            size_t parameter, int64_t element) {
  return run_ranks_expecting_errors(3, [&](std::shared_ptr<ProcessGroup> world) {
    const auto net = make_wide();
    const auto engine = parallelize(net, adamw(), options_of(configuration), world);
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

/// The write is beyond the first 64 elements, the only ones compared if nothing is shared.
TEST(SharedParameters, EveryStrayWriteIsFoundAndNamed) {
  const auto net = make_wide();
  const auto named = net->named_parameters();
  for (size_t i = 0; i < named.size(); ++i) {
    const int64_t numel = named[i].value().numel();
    if (numel < 70) continue;
    const auto errors = errors_after_write(configuration_of(Strategy::kZero2), 1, i, numel - 1);
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
        parallelize(net, adamw(), small_options_of(configuration_of(Strategy::kZero1)), world);
    const auto before = copy_parameters(*net);
    world->barrier("copied");
    if (world->rank() == 0) {
      const torch::NoGradGuard no_grad;
      for (const at::Tensor& parameter : net->parameters()) parameter.fill_(9);
    }
    world->barrier("written");
    EXPECT_EQ(bit_differences(copy_parameters(*net), before) == "", world->rank() == 1);
    // Rank 1's values become everyone's.
    engine->modify_parameters(1, [] {});
    EXPECT_EQ(bit_differences(copy_parameters(*net), before), "");
  });
}

/// The view of a rank that cannot read its page map: asking for its writes is an error.
class BlindBuffer final : public SharedBuffer {
 public:
  explicit BlindBuffer(std::unique_ptr<SharedBuffer> inner) : inner_(std::move(inner)) {}

  at::Tensor common(int64_t offset_bytes, int64_t numel, at::ScalarType dtype) override {
    return inner_->common(offset_bytes, numel, dtype);
  }
  at::Tensor view(int64_t offset_bytes, int64_t numel, at::ScalarType dtype) override {
    return inner_->view(offset_bytes, numel, dtype);
  }
  std::optional<int64_t> find_own_write() override {
    TORCH_CHECK(false, "[comm] shared buffer: got no page table, expected one");
  }
  void drop_own_writes() override { inner_->drop_own_writes(); }

 private:
  const std::unique_ptr<SharedBuffer> inner_;
};

/// Replaces the shared buffers that a group makes.
class BufferGroup final : public ForwardingGroup {
 public:
  using Change = std::function<std::unique_ptr<SharedBuffer>(std::unique_ptr<SharedBuffer>)>;

  BufferGroup(std::shared_ptr<ProcessGroup> inner, Change change)
      : ForwardingGroup(std::move(inner)), change_(std::move(change)) {}

  std::unique_ptr<SharedBuffer> make_shared_buffer(int64_t bytes, std::string_view name) override {
    return change_(inner_->make_shared_buffer(bytes, name));
  }

 protected:
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override {
    return std::make_shared<BufferGroup>(std::move(inner), change_);
  }

 private:
  const Change change_;
};

/// A rank that cannot see its writes may still have made some.
TEST(SharedParameters, AStepIsRefusedOnAllRanksWhereOneCannotSeeItsWrites) {
  for (const Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kZero3}) {
    const auto errors = run_ranks_expecting_errors(3, [&](std::shared_ptr<ProcessGroup> world) {
      const bool is_blind = world->rank() == 1;
      const auto group = std::make_shared<BufferGroup>(
          world, [is_blind](std::unique_ptr<SharedBuffer> buffer) -> std::unique_ptr<SharedBuffer> {
            if (!is_blind) return buffer;
            return std::make_unique<BlindBuffer>(std::move(buffer));
          });
      const auto net = make_net();
      const auto engine =
          parallelize(net, adamw(), small_options_of(configuration_of(strategy)), group);
      loss_on(*net, world->rank(), 0).backward();
      engine->step();
    });
    EXPECT_THAT(errors, Each(HasSubstr("rank 1")));
    EXPECT_THAT(errors, Each(HasSubstr("got no page table")));
  }
}

/// Hybrids whose ranks share parameters in several groups, one of which cannot.
TEST(SharedParameters, AreSharedByAllGroupsOfSharersOrByNone) {
  std::map<std::string, at::Tensor> expected;
  for (const bool is_poor : {false, true}) {
    run_ranks(4, [&](std::shared_ptr<ProcessGroup> world) {
      const bool has_none = is_poor && world->rank() < 2;
      const auto group =
          std::make_shared<BufferGroup>(world, [has_none](std::unique_ptr<SharedBuffer> buffer) {
            return has_none ? nullptr : std::move(buffer);
          });
      const auto net = make_net();
      const auto engine = parallelize(net, adamw(), small_options_of(hybrid(1, 2, 2)), group);
      for (int step = 0; step < 3; ++step) {
        loss_on(*net, world->rank(), step).backward();
        engine->step();
      }
      // A rank's own copy takes more memory than its part of a shared one.
      const at::Tensor bytes = at::full({1}, engine->memory().now().total(), at::kLong);
      const at::Tensor most = bytes.clone();
      world->all_reduce(most, ReduceOp::kMax, "most")->wait();
      EXPECT_TRUE(at::equal(bytes, most));
      const auto whole = engine->full_parameters();
      if (world->rank() != 3) return;
      if (!is_poor) expected = copy_parameters(*net);
      EXPECT_EQ(bit_differences(copy_parameters(*net), expected), "");
    });
  }
}

/// If one group lacks memory, all ranks fail.
TEST(SharedParameters, NoSpaceInOneGroupOfSharersIsEveryRanksError) {
  const auto errors = run_ranks_expecting_errors(4, [](std::shared_ptr<ProcessGroup> world) {
    const bool has_none = world->rank() >= 2;
    const auto group =
        std::make_shared<BufferGroup>(world, [has_none](std::unique_ptr<SharedBuffer> buffer) {
          TORCH_CHECK(!has_none, "got no space");
          return buffer;
        });
    parallelize(make_net(), adamw(), small_options_of(hybrid(1, 2, 2)), group);
  });
  EXPECT_THAT(errors, Each(HasSubstr("ranks 2, 3: got no space")));
}

/// What one rank lacks is an error on all: they leave the new groups, and no rank needs to be told.
TEST(SharedParameters, AfterARefusalTheWorldCanBeUsedAgain) {
  run_ranks(4, [](std::shared_ptr<ProcessGroup> world) {
    const auto net = make_net();
    const auto poor =
        std::make_shared<BufferGroup>(world, [&](std::unique_ptr<SharedBuffer> buffer) {
          TORCH_CHECK(world->rank() != 3, "got no space");
          return buffer;
        });
    EXPECT_THROW(parallelize(net, adamw(), small_options_of(hybrid(1, 2, 2)), poor),
                 ErrorOnAllRanks);
    const auto engine = parallelize(net, adamw(), small_options_of(hybrid(1, 2, 2)), world);
    loss_on(*net, world->rank(), /*step=*/0).backward();
    engine->step();
  });
}

/// Drops the barrier after an update, and lets rank 0 return from its step before rank 1 begins to
/// update.
class HastyGroup final : public ForwardingGroup {
 public:
  HastyGroup(std::shared_ptr<ProcessGroup> inner, std::shared_future<void> may_update)
      : ForwardingGroup(std::move(inner)), may_update_(std::move(may_update)) {}

  std::shared_ptr<Work> run(const Collective& collective) override {
    if (collective.op == Op::kBarrier && collective.tag == "parameters updated") {
      return completed_work();
    }
    auto work = inner_->run(collective);
    if (collective.op != Op::kAllGather) return work;
    work->wait();
    if (rank() == 1 && collective.tag == "vote of the step") may_update_.wait();
    return work;
  }

 protected:
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override {
    return std::make_shared<HastyGroup>(std::move(inner), may_update_);
  }

 private:
  const std::shared_future<void> may_update_;
};

/// Negative control: without the barrier a rank sees partly old parameters.
TEST(SharedParameters, WithoutTheBarrierOldValuesWouldBeSeen) {
  for (const Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kZero3}) {
    std::promise<void> rank0_looked;
    const std::shared_future<void> may_update = rank0_looked.get_future().share();
    run_ranks(2, [&](std::shared_ptr<ProcessGroup> world) {
      const auto group = std::make_shared<HastyGroup>(world, may_update);
      const auto net = make_net();
      const auto engine =
          parallelize(net, adamw(), small_options_of(configuration_of(strategy)), group);
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
}  // namespace tessera::internal::testing
