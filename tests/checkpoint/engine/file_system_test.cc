// Runs on file systems that lack some calls, and runs of several users.
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/checkpoint.h"
#include "tessera/checkpoints.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/refused_calls.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/support/warnings_of_ranks.h"
#include "tessera/tests/zero/state/saved_rank.h"

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kSavers = 2;  // ranks

TEST(FileSystems, MayLackLocksModesAndSync) {
  if (!can_refuse_calls()) GTEST_SKIP() << "not run: this kernel has no seccomp filters";
  const auto save_and_go_on = [](bool asynchronous) {
    const TemporaryDirectory directory;
    const std::string path = directory.path() + "/run";
    run_ranks(kSavers, [&](std::shared_ptr<ProcessGroup> group) {
      const SavedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero2), 3);
      Checkpoints checkpoints(*run.engine, path,
                              {.every = 1, .keep = 1, .asynchronous = asynchronous});
      for (int step = 0; step < 2; ++step) {
        run.train(step, step + 1);
        checkpoints.after_step();
      }
      checkpoints.finish();
      EXPECT_EQ(checkpoints.durable_step(), 2);
      EXPECT_THAT(message_of([&] { save_checkpoint(*run.engine, path); }),
                  HasSubstr("'" + path + "/lock.held', which is there: held by pid "));
    });
    EXPECT_THAT(names_in(path), ElementsAre("lock", "step-2"));
    run_ranks(kSavers, [&](std::shared_ptr<ProcessGroup> group) {
      const SavedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero3), 77);
      const auto loaded = load_checkpoint(*run.engine, path);
      EXPECT_TRUE(loaded.has_value() && loaded->step == 2);
      run.train(2, 3);
      EXPECT_EQ(save_checkpoint(*run.engine, path), path + "/step-3");
    });
    EXPECT_THAT(names_in(path), ElementsAre("lock", "step-2", "step-3"));
  };
  for (const bool asynchronous : {true, false}) {
    run_with_refused_calls(
        {{SYS_flock, EOPNOTSUPP}, {SYS_fchmod, EPERM}, {kChmodCall, EPERM}, {SYS_fsync, EINVAL}},
        [&] { save_and_go_on(asynchronous); });
  }
}

TEST(AsynchronousSaves, WaitWhereNoThreadCanBeStarted) {
  if (!can_refuse_calls()) GTEST_SKIP() << "not run: this kernel has no seccomp filters";
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/run";
  WarningsOfRanks warnings;
  run_ranks(kSavers, [&](std::shared_ptr<ProcessGroup> group) {
    const bool is_refused = group->rank() == 1;
    const SavedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero2), 3);
    run.train(0, 1);
    if (is_refused) refuse_calls({{SYS_clone3, EAGAIN}, {SYS_clone, EAGAIN}});
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    Checkpoints checkpoints(*run.engine, path, {.asynchronous = true});
    checkpoints.save();
    EXPECT_EQ(checkpoints.durable_step(), 1) << "without finish()";
  });
  EXPECT_THAT(warnings.texts(),
              ElementsAre(AllOf(HasSubstr("rank 1: [process] thread for asynchronous checkpoints"),
                                HasSubstr("training waits for each checkpoint instead"))));
}

TEST(FileSystems, GiveAGroupWhatTheUmaskLeavesIfAskedTo) {
  const TemporaryDirectory directory;
  const mode_t before = ::umask(0007);
  run_ranks(kSavers, [&](std::shared_ptr<ProcessGroup> group) {
    const bool is_first = group->rank() == 0;
    const SavedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero1), 3);
    run.train(0, 1);
    save_checkpoint(*run.engine, directory.path() + "/one", {.group_access = true});
    Checkpoints checkpoints(*run.engine, directory.path() + "/run", {.group_access = true});
    checkpoints.save();
    checkpoints.finish();
    EXPECT_THAT(message_of([&] {
                  const Checkpoints other(*run.engine, directory.path() + "/other",
                                          {.group_access = is_first});
                }),
                HasSubstr("group_access 1"));
    EXPECT_THAT(message_of([&] {
                  save_checkpoint(*run.engine, directory.path() + "/other",
                                  {.group_access = is_first});
                }),
                HasSubstr("group_access 1"));
  });
  ::umask(before);
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
    struct stat status {};
    ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777U, entry.is_directory() ? 0770U : 0660U) << entry.path();
    files += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(files, 2 * (kSavers + 2)) << "with manifest and lock";
}

}  // namespace
}  // namespace tessera::internal::testing
