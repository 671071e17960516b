#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/util/ScopeExit.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/comm_hook.h"
#include "tessera/parallelize.h"
#include "tessera/sync_batch_norm.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

// Combinations that Reproducible::kAnyWorldSize refuses, by name, on all ranks.

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

const Options kAnySize{.reproducible = Reproducible::kAnyWorldSize};

struct AnySizeRank {
  explicit AnySizeRank(const std::shared_ptr<ProcessGroup>& group, const char* model = "OddMlp",
                       const Options& options = kAnySize)
      : world(group),
        trained(subject(model)),
        net(prepare(trained.make(), at::kFloat, 42)),
        engine(parallelize(net, make_plan(*net), options, group)) {}

  at::Tensor loss() const {
    const Batch batch =
        draw_batch(trained, at::kFloat, 3, static_cast<uint64_t>(engine->micro_batch()));
    return at::mse_loss(net->forward(batch.input, {.step = 0, .rank = world->rank()}),
                        batch.target);
  }

  std::shared_ptr<ProcessGroup> world;
  const Subject& trained;
  std::shared_ptr<Net> net;
  std::unique_ptr<Engine> engine;
};

/// Returns the error of parallelize() on each of `size` ranks.
std::vector<std::string> refusals_of_parallelize(
    int size, const std::function<void(const std::shared_ptr<ProcessGroup>&)>& make) {
  std::vector<std::string> messages(static_cast<size_t>(size));
  run_ranks(size, [&](const std::shared_ptr<ProcessGroup>& world) {
    messages[static_cast<size_t>(world->rank())] = message_of([&] { make(world); });
  });
  return messages;
}

TEST(AnyWorldSizeRefusals, OfWorlds) {
  EXPECT_THAT(refusals_of_parallelize(3, [](const auto& world) { AnySizeRank rank(world); }),
              Each(HasSubstr("reproducible: is set in a world of 3 ranks, expected a power of")));
}

TEST(AnyWorldSizeRefusals, OfRanksThatDiffer) {
  EXPECT_THAT(refusals_of_parallelize(2,
                                      [](const auto& world) {
                                        AnySizeRank rank(world, "OddMlp",
                                                         world->rank() == 0 ? kAnySize : Options{});
                                      }),
              Each(AllOf(HasSubstr("'reproducible one world size' vs 'reproducible any world"))));
  const int before = at::get_num_threads();
  const auto restore = c10::make_scope_exit([before] { at::set_num_threads(before); });
  EXPECT_THAT(refusals_of_parallelize(2,
                                      [](const auto& world) {
                                        // A thread's first call fixes its number, whatever other
                                        // threads set later.
                                        static_cast<void>(at::get_num_threads());
                                        world->barrier("threads");
                                        if (world->rank() == 1) at::set_num_threads(2);
                                        AnySizeRank rank(world);
                                      }),
              Each(HasSubstr("'intra-op threads 2' vs 'intra-op threads 1'")));
}

TEST(AnyWorldSizeRefusals, OfNormsThatKeepStatistics) {
  EXPECT_THAT(
      refusals_of_parallelize(2, [](const auto& world) { AnySizeRank rank(world, "BatchNorm"); }),
      Each(HasSubstr("reproducible: is set, but module 'norm' keeps running statistics")));
  Options ignoring = kAnySize;
  ignoring.ignores_buffers = [](std::string_view name) { return name.starts_with("norm."); };
  EXPECT_THAT(refusals_of_parallelize(
                  2, [&](const auto& world) { AnySizeRank rank(world, "BatchNorm", ignoring); }),
              Each(kNothingThrown));
  EXPECT_THAT(refusals_of_parallelize(
                  2,
                  [](const auto& world) {
                    const auto model = std::make_shared<torch::nn::SequentialImpl>(
                        torch::nn::Linear(3, 3), tessera::nn::SyncBatchNorm1d(3, world));
                    parallelize(model, torch::optim::AdamWOptions(0.1), kAnySize, world);
                  }),
              Each(HasSubstr("module '1' is a SyncBatchNorm, which normalises over")));
}

TEST(AnyWorldSizeRefusals, OfPrecision) {
  Options sixteen = kAnySize;
  sixteen.precision.parameters = at::kBFloat16;
  EXPECT_THAT(refusals_of_parallelize(
                  2, [&](const auto& world) { AnySizeRank rank(world, "OddMlp", sixteen); }),
              Each(HasSubstr("are sent in BFloat16 and summed in Float")));
}

TEST(AnyWorldSizeRefusals, OfCalls) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    const AnySizeRank rank(world);
    Engine& engine = *rank.engine;
    EXPECT_THAT(message_of([&] { const auto scope = engine.no_sync(); }),
                HasSubstr("[engine] no_sync: got Options::reproducible, under"));
    EXPECT_THAT(message_of([&] { engine.backward(rank.loss(), {.weight = 2.0}); }),
                HasSubstr("[engine] backward with a weight: got Options::reproducible"));
    EXPECT_THAT(message_of([&] { engine.accumulate({}, 2.0); }),
                HasSubstr("backward with a weight: got Options::reproducible"));
    EXPECT_THAT(message_of([&] { engine.register_comm_hook(all_reduce_hook()); }),
                HasSubstr("register_comm_hook: got Options::reproducible"));
    std::vector<int> batches(2);
    EXPECT_THAT(message_of([&] {
                  for (const int batch : engine.join(batches)) static_cast<void>(batch);
                }),
                HasSubstr("join: got Options::reproducible, under"));
    for (int backward = 0; backward < 4; ++backward) engine.backward(rank.loss());
    EXPECT_TRUE(engine.step().committed) << "the engine can be used after all this";
  });
}

TEST(AnyWorldSizeRefusals, OfStepsWhoseMicroStepsAreNoPowerOfTwo) {
  run_ranks(4, [](const std::shared_ptr<ProcessGroup>& world) {
    const AnySizeRank rank(world);
    Engine& engine = *rank.engine;
    for (int backward = 0; backward < 3; ++backward) rank.loss().backward();
    EXPECT_THAT(message_of([&] { engine.step(); }),
                HasSubstr("got 3 backwards since the last step, expected a power of two"));
    rank.loss().backward();
    EXPECT_TRUE(engine.step().committed) << "a fourth completes it";
    EXPECT_EQ(engine.micro_batch(), 4 * 4 + world->rank());
    for (int backward = 0; backward < 3; ++backward) rank.loss().backward();
    engine.zero_grad();
    rank.loss().backward();
    EXPECT_TRUE(engine.step().committed);
    EXPECT_EQ(engine.micro_batch(), 8 * 4 + world->rank()) << "dropped ones count";
  });
}

TEST(AnyWorldSizeRefusals, OfOtherNumbersOfThreadsInBackward) {
  const int before = at::get_num_threads();
  const auto restore = c10::make_scope_exit([before] { at::set_num_threads(before); });
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    const AnySizeRank rank(world);
    if (world->rank() == 1) at::set_num_threads(2);
    rank.loss().backward();
    EXPECT_THAT(message_of([&] { rank.engine->step(); }),
                AllOf(HasSubstr("rank 1: "),
                      HasSubstr("got 2 intra-op threads in a backward, expected the 1 of")));
    at::set_num_threads(1);
    rank.engine->zero_grad();
    rank.loss().backward();
    EXPECT_TRUE(rank.engine->step().committed);
  });
}

TEST(AnyWorldSizeRefusals, OfStatesOfOtherRuns) {
  const int before = at::get_num_threads();
  const auto restore = c10::make_scope_exit([before] { at::set_num_threads(before); });
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    StateDict saved;
    {
      const AnySizeRank rank(world);
      saved = rank.engine->state_dict(StateScope::kEveryRank);
    }
    const AnySizeRank other(world, "OddMlp", {});
    EXPECT_THAT(message_of([&] { other.engine->load_state_dict(saved); }),
                HasSubstr("'engine.micro_batches': got an entry that this run does not have; a run "
                          "under Options::reproducible saved the state"));
    const StateDict plain = other.engine->state_dict(StateScope::kEveryRank);
    const AnySizeRank rank(world);
    rank.engine->load_state_dict(plain);
    EXPECT_EQ(rank.engine->micro_batch(), world->rank());
    world->barrier("before threads");
    at::set_num_threads(2);
    const AnySizeRank threads(world);
    EXPECT_THAT(message_of([&] { threads.engine->load_state_dict(saved); }),
                HasSubstr("'engine.intra_op_threads': got 1, expected the 2 of this run"));
  });
}

/// A second gradient ends the engine on all ranks, as under other options that refuse it.
TEST(AnyWorldSizeRefusals, OfASecondGradientInOneBackward) {
  for (const char* model : {"CheckpointedTwice", "CheckpointedOnSomeRanks"}) {
    const auto errors =
        run_ranks_expecting_errors(2, [&](const std::shared_ptr<ProcessGroup>& world) {
          const AnySizeRank rank(world, model);
          rank.loss().backward();
        });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("[grad] 'twice."),
                                   HasSubstr("got a second gradient within one backward"),
                                   HasSubstr("Leave Options::reproducible out"))));
  }
}

/// micro_batch() counts even without the option.
TEST(AnyWorldSizeRefusals, OfNothingWithoutTheOption) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    const AnySizeRank rank(world, "CheckpointedTwice", {});
    for (int backward = 0; backward < 3; ++backward) {
      const auto scope = rank.engine->no_sync();
      rank.loss().backward();
    }
    rank.loss().backward();
    EXPECT_TRUE(rank.engine->step().committed);
    EXPECT_EQ(rank.engine->micro_batch(), 4 * 3 + world->rank());
    rank.engine->set_trainable([](std::string_view name) { return name.starts_with("last"); });
    EXPECT_EQ(rank.engine->micro_batch(), 4 * 3 + world->rank());
  });
}

}  // namespace
}  // namespace tessera::internal::testing
