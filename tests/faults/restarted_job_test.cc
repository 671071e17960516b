#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/checkpoints.h"
#include "tessera/environment.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/faults/trainer.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/tools/launched_job.h"

// tessera-run --max-restarts with a job that trains and saves.
namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::string variable(const char* name) { return process_environment(name).value_or(""); }

/// Trains six steps, saves every FAULT_EVERY of them, and prints where it starts. Rank 1 dies after
/// the steps in FAULT_STEPS, one digit for each attempt.
const RankProcessBody kTrainAndSave("train_and_save", [] {
  auto world = init_process_group();
  Trainer trainer(world, configuration_of(Strategy::kZero2));
  Checkpoints checkpoints(
      *trainer.engine, variable("FAULT_DIRECTORY"),
      {.every = std::atoi(variable("FAULT_EVERY").c_str()), .asynchronous = false});
  const auto loaded = checkpoints.load();
  const int64_t begin = loaded.has_value() ? loaded->step : 0;
  if (world->rank() == 0) say(absl::StrCat("begins after ", begin));
  const auto attempt = static_cast<size_t>(std::atoi(variable("TESSERA_RESTART_COUNT").c_str()));
  const std::string fatal = variable("FAULT_STEPS");
  for (int64_t step = begin; step < 6; ++step) {
    const bool is_last = attempt < fatal.size() && step == fatal[attempt] - '0';
    if (is_last && world->rank() == 1) ::kill(::getpid(), SIGKILL);
    trainer.train(static_cast<int>(step));
    checkpoints.after_step();
  }
  checkpoints.finish();
});

LaunchedJob launch(const std::string& directory, const std::string& every,
                   const std::string& fatal_steps) {
  return LaunchedJob(
      {"--nproc-per-node=2", "--max-restarts=1", "--backoff-seconds=0", "--grace-seconds=1", "--",
       std::filesystem::read_symlink("/proc/self/exe").string(), "--rank_body=train_and_save"},
      {{"FAULT_DIRECTORY", directory}, {"FAULT_EVERY", every}, {"FAULT_STEPS", fatal_steps}});
}

TEST(RestartedJob, GoesOnFromWhatItHasSavedAndGetsItsRestartsBack) {
  const TemporaryDirectory folder;
  LaunchedJob job = launch(folder.path() + "/run", "1", "245");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(),
              AllOf(HasSubstr("[0] begins after 0\n"), HasSubstr("[0] begins after 2\n"),
                    HasSubstr("[0] begins after 4\n"), HasSubstr("[0] begins after 5\n")));
  EXPECT_THAT(
      job.err(),
      MatchesRegex("(.|\n)*first failure: rank 1 \\(pid [0-9]+\\) died of signal 9 "
                   "\\(SIGKILL\\) after step 2(.|\n)*starting again in 0 s \\(restart 1 of "
                   "1\\)(.|\n)* after step 4(.|\n)*starting again in 0 s \\(restart 1 of 1; "
                   "counted anew, as step 4 is saved\\)(.|\n)* after step 5(.|\n)*"));
}

TEST(RestartedJob, EndsWhereItFailsAtTheSameStepAgain) {
  const TemporaryDirectory folder;
  LaunchedJob job = launch(folder.path() + "/run", "2", "33");
  EXPECT_EQ(job.wait(), 137) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("not starting again: the start before failed in the same way, "
                                   "after the same step 3\n"));
}

// A resumed job that fails before it has trained a step of its own may only have met a busy
// machine.
TEST(RestartedJob, StartsAgainWhereItHasTrainedNothingSinceItsLastStart) {
  const TemporaryDirectory folder;
  LaunchedJob job = launch(folder.path() + "/run", "1", "22");
  EXPECT_EQ(job.wait(), 137) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("not starting again: 1 restart without a newly saved step\n"));
}

}  // namespace
}  // namespace tessera::internal::testing
