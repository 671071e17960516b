// Runs with checkpoints in a program's own file system: an object store, which has no rename.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/checkpoint.h"
#include "tessera/checkpoints.h"
#include "tessera/tests/checkpoint/memory_store.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/zero/state/saved_rank.h"

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kRanks = 3;
constexpr const char* kRun = "bucket/run";

/// Resumes from step `begin` (-1: from nothing), which must be the newest, and trains to step
/// `last`.
States go_on_in(const std::shared_ptr<MemoryStore>& store, int world, Strategy strategy,
                CheckpointsOptions options, int64_t begin, int64_t last) {
  options.files = store;
  return on_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "OddMlp", configuration_of(strategy), 3);
    Checkpoints checkpoints(*run.engine, kRun, options);
    const auto loaded = checkpoints.load();
    EXPECT_EQ(loaded.has_value() ? loaded->step : -1, begin);
    for (auto step = static_cast<int>(run.engine->steps()); step < last; ++step) {
      run.train(step, step + 1);
      checkpoints.after_step();
    }
    checkpoints.finish();
    return run.engine->state_dict(StateScope::kEveryRank);
  });
}

TEST(RunsInAStore, GoOnBitForBit) {
  const States straight =
      saved_after(4, kRanks, "OddMlp", configuration_of(Strategy::kDdp), StateScope::kEveryRank);
  for (const bool asynchronous : {true, false}) {
    const auto store = std::make_shared<MemoryStore>();
    const CheckpointsOptions options{.every = 2, .asynchronous = asynchronous};
    // Steps after the last save are lost with the run, and made again.
    const States part = go_on_in(store, kRanks, Strategy::kZero3, options, -1, 3);
    EXPECT_NE(bit_differences(part.front(), straight.front()), "") << "the control";
    const States states = go_on_in(store, kRanks, Strategy::kZero2, options, 2, 4);
    for (size_t rank = 0; rank < states.size(); ++rank) {
      EXPECT_EQ(bit_differences(states[rank], straight[rank]), "") << rank;
    }
    const States loaded = go_on_in(store, 2, Strategy::kZero1, options, 4, 4);
    EXPECT_EQ(bit_differences(loaded.front(), straight.front()), "") << "on two ranks";
    EXPECT_THAT(*store->list(kRun), ElementsAre("step-2", "step-4"));
    EXPECT_EQ(store->objects("bucket/run/step-4/").size(), kRanks + 1);
    EXPECT_EQ(store->objects().size(), 2 * (kRanks + 1)) << "and nothing else";
  }
}

TEST(RunsInAStore, DeleteOldStepsAndSetAsideNewerOnes) {
  const auto store = std::make_shared<MemoryStore>();
  go_on_in(store, kRanks, Strategy::kZero2, {.every = 1, .keep = 2}, -1, 4);
  EXPECT_THAT(*store->list(kRun), ElementsAre("step-3", "step-4"));
  const auto newest = store->objects("bucket/run/step-4/");
  run_ranks(kRanks, [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero2), 3);
    Checkpoints checkpoints(*run.engine, kRun, {.every = 1, .files = store});
    EXPECT_THAT(message_of([&] { checkpoints.load({.step = 3, .files = store}); }),
                HasSubstr("leave LoadOptions::files out"));
    checkpoints.load({.step = 3});
    run.train(3, 4);
    checkpoints.after_step();
    checkpoints.finish();
    EXPECT_EQ(checkpoints.durable_step(), 4);
  });
  const auto names = *store->list(kRun);
  ASSERT_THAT(names, ElementsAre("step-3", "step-4", StartsWith("step-4.replaced-")));
  EXPECT_EQ(store->objects("bucket/run/" + names.back() + "/"), newest);
}

TEST(RunsInAStore, FallBackFromADamagedStep) {
  for (const bool is_readable : {true, false}) {
    const auto store = std::make_shared<MemoryStore>();
    go_on_in(store, kRanks, Strategy::kZero3, {.every = 1}, -1, 2);
    const std::string key = "bucket/run/step-2/rank-00002-of-00003.safetensors";
    std::string bytes = store->objects(key).at("");
    bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 4);
    store->put(key, bytes);
    if (!is_readable) store->spoil(key);
    go_on_in(store, kRanks, Strategy::kZero3, {.every = 1}, 1, 2);
    const auto names = *store->list(kRun);
    ASSERT_THAT(names, ElementsAre("step-1", "step-2", StartsWith("step-2.replaced-")));
    EXPECT_EQ(store->objects("bucket/run/" + names.back()).size(), kRanks + (is_readable ? 1 : 0));
    go_on_in(store, kRanks, Strategy::kZero3, {.every = 1}, 2, 2);
  }
}

TEST(RunsInAStore, LearnOnEveryRankThatAPutHasFailed) {
  for (const int refused_rank : {0, 1}) {
    const auto store = std::make_shared<MemoryStore>();
    const std::string key =
        std::string("bucket/run/step-2/") +
        (refused_rank == 0 ? "manifest.json" : "rank-00001-of-00003.safetensors");
    std::vector<std::string> messages(kRanks);
    run_ranks(kRanks, [&](std::shared_ptr<ProcessGroup> group) {
      const auto rank = static_cast<size_t>(group->rank());
      const SavedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero2), 3);
      const auto save = [&] { return save_checkpoint(*run.engine, kRun, {.files = store}); };
      run.train(0, 1);
      EXPECT_EQ(save(), "bucket/run/step-1");
      run.train(1, 2);
      if (rank == 0) store->refuse_puts(key);
      run.world->barrier();
      messages[rank] = message_of(save);
      const auto loaded = load_checkpoint(*run.engine, kRun, {.files = store});
      EXPECT_TRUE(loaded.has_value() && loaded->step == 1) << "the newest";
      run.train(1, 2);
      if (rank == 0) {
        EXPECT_EQ(store->objects().size(), kRanks + 1) << "nothing is left of the other";
        store->refuse_puts("");
      }
      run.world->barrier();
      EXPECT_EQ(save(), "bucket/run/step-2");
    });
    EXPECT_THAT(messages, Each(AllOf(HasSubstr("[checkpoint] rank " + std::to_string(refused_rank)),
                                     HasSubstr("[store] cannot put '" + key))));
  }
}

TEST(RunsInAStore, AreFoundWithASlashAtTheEnd) {
  const auto store = std::make_shared<MemoryStore>();
  run_ranks(kRanks, [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero1), 3);
    run.train(0, 1);
    save_checkpoint(*run.engine, "bucket/run/", {.files = store});
    EXPECT_TRUE(load_checkpoint(*run.engine, "bucket/run/", {.files = store}).has_value());
    EXPECT_TRUE(load_checkpoint(*run.engine, kRun, {.files = store}).has_value());
  });
}

TEST(RunsInAStore, ARefusedOneLeavesTheWorldAsItWas) {
  const auto store = std::make_shared<MemoryStore>();
  run_ranks(kRanks, [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero1), 3);
    EXPECT_THAT(message_of([&] {
                  const Checkpoints checkpoints(*run.engine, kRun,
                                                {.notes = {{"a\n", "x"}}, .files = store});
                }),
                HasSubstr("cannot be saved"));
    run.world->barrier();
    run.train(0, 1);
  });
}

TEST(RunsInAStore, AreRefusedWhereRanksOrOptionsDoNotFit) {
  const auto store = std::make_shared<MemoryStore>();
  run_ranks(kRanks, [&](std::shared_ptr<ProcessGroup> group) {
    const std::shared_ptr<MemoryStore> mine = group->rank() == 1 ? nullptr : store;
    const SavedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero1), 3);
    EXPECT_THAT(message_of([&] { save_checkpoint(*run.engine, kRun, {.files = mine}); }),
                HasSubstr("'files of this machine' vs 'files of its own'"));
    EXPECT_THAT(message_of([&] { load_checkpoint(*run.engine, kRun, {.files = mine}); }),
                HasSubstr("'files of this machine' vs 'files of its own'"));
    EXPECT_THAT(message_of([&] {
                  const Checkpoints checkpoints(*run.engine, kRun,
                                                {.group_access = true, .files = store});
                }),
                HasSubstr("leave group_access out"));
    const auto other = std::make_shared<MemoryStore>();
    EXPECT_THAT(message_of([&] { save_checkpoint(*run.engine, kRun, {.files = other}); }),
                HasSubstr("expected one that all ranks share"));
  });
  EXPECT_TRUE(store->objects().empty());
}

}  // namespace
}  // namespace tessera::internal::testing
