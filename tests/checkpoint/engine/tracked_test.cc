#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/checkpoints.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/zero/state/saved_rank.h"

// Objects that a run tracks in addition to its engine.
namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Tracking, TakesNamesOnceAndTheProgramsOwn) {
  const TemporaryDirectory directory;
  run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
    const int rank = group->rank();
    const SavedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero1), 3);
    CheckpointExtras loaded;
    Checkpoints checkpoints(*run.engine, directory.path(), {.asynchronous = false});
    checkpoints.track("mine", {.save =
                                   [&] {
                                     return CheckpointExtras{
                                         .values = {{"a", int64_t{1}}, {"b/c", "text"}},
                                         .tensors = {},
                                         .rank_tensors = {{"r", torch::full({2}, rank)}}};
                                   },
                               .load = [&](const CheckpointExtras& extras) { loaded = extras; }});
    int64_t number = 0;
    EXPECT_THROW(checkpoints.track("mine", number), c10::Error);
    EXPECT_THROW(checkpoints.track("a/b", number), c10::Error);
    EXPECT_THROW(checkpoints.track("", number), c10::Error);
    EXPECT_THROW(checkpoints.track("f", Checkpoints::Functions{}), c10::Error);
    checkpoints.save();
    EXPECT_EQ(checkpoints.load()->step, 0);
    EXPECT_EQ(std::get<int64_t>(loaded.values.at("a")), 1);
    EXPECT_EQ(std::get<std::string>(loaded.values.at("b/c")), "text");
    EXPECT_TRUE(loaded.rank_tensors.at("r").equal(torch::full({2}, rank)));
  });
}

TEST(Tracking, FailsOnAllRanksWhereOneCannotSayWhatItHas) {
  const TemporaryDirectory directory;
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
    const int rank = group->rank();
    const SavedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero1), 3);
    Checkpoints checkpoints(*run.engine, directory.path());
    bool is_sparse = false, is_second = false;
    checkpoints.track("mine", {.save = [&]() -> CheckpointExtras {
                                 if (is_sparse) {
                                   return {.rank_tensors = {{"s", torch::eye(2).to_sparse()}}};
                                 }
                                 if (rank == 1 && !is_second)
                                   throw std::runtime_error("out of ideas");
                                 return {};
                               },
                               .load =
                                   [&](const CheckpointExtras&) {
                                     if (rank == 0) throw std::runtime_error("no use for it");
                                   }});
    EXPECT_THAT([&] { checkpoints.save(); },
                ThrowsMessage<c10::Error>(HasSubstr("rank 1: out of ideas")));
    is_second = true;
    is_sparse = rank == 2;
    EXPECT_THAT(
        [&] { checkpoints.save(); },
        ThrowsMessage<c10::Error>(HasSubstr("got a tensor that is undefined or not dense")));
    is_sparse = false;
    checkpoints.save();
    EXPECT_THAT([&] { checkpoints.load(); },
                ThrowsMessage<c10::Error>(HasSubstr("rank 0: no use for it")));
    run.train(0, 1);
  });
}

TEST(Tracking, IsOverInAChildOfFork) {
  const TemporaryDirectory directory;
  run_ranks(1, [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero1), 3);
    auto checkpoints = std::make_unique<Checkpoints>(*run.engine, directory.path());
    checkpoints->save();  // its thread is not joined yet
    const pid_t child = ::fork();
    if (child == 0) {
      int refused = 0;
      for (const auto& call : std::vector<std::function<void()>>{
               [&] { checkpoints->save(); }, [&] { checkpoints->finish(); },
               [&] { checkpoints->after_step(); }, [&] { checkpoints->load(); }}) {
        try {
          call();
        } catch (const c10::Error&) {
          ++refused;
        }
      }
      checkpoints.reset();  // does not wait for the thread
      ::_exit(refused == 4 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    checkpoints->finish();
    EXPECT_EQ(checkpoints->durable_step(), 0);
  });
}

TEST(StepForward, MakesASchedulerWhatItWasAndLeavesTheRates) {
  run_ranks(1, [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero1), 3);
    auto& optimizer = run.engine->optimizer();
    const auto rate = [&] { return optimizer.param_groups()[0].options().get_lr(); };
    torch::optim::StepLR straight(optimizer, /*step_size=*/2, /*gamma=*/0.5);
    for (int i = 0; i < 3; ++i) straight.step();
    const double then = rate();
    for (int i = 0; i < 3; ++i) straight.step();
    const double expected = rate();
    for (auto& parameters : optimizer.param_groups()) parameters.options().set_lr(then);
    torch::optim::StepLR resumed(optimizer, 2, 0.5);
    step_forward(resumed, *run.engine, 3);
    EXPECT_EQ(rate(), then);
    for (int i = 0; i < 3; ++i) resumed.step();
    EXPECT_EQ(rate(), expected);
  });
}

}  // namespace
}  // namespace tessera::internal::testing
