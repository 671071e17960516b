#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>

#include "tessera/core/launch/exit_status.h"
#include "tessera/core/process/job_page.h"
#include "tessera/environment.h"
#include "tessera/launch.h"
#include "tessera/record_errors.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/tools/launched_job.h"

// What tessera-run --max-restarts does with jobs that fail.
namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kSpin = "while :; do sleep 0.02; done";

/// `flags`, then `script` under /bin/sh in `ranks` ranks.
std::vector<std::string> job(int ranks, const std::string& script,
                             std::vector<std::string> flags = {"--max-restarts=2",
                                                               "--backoff-seconds=0"}) {
  flags.insert(flags.end(),
               {"--nproc-per-node", absl::StrCat(ranks), "--", "/bin/sh", "-c", script});
  return flags;
}

TEST(Restarts, AJobThatFailsStartsAgainAsAWhole) {
  testing::TemporaryDirectory tmp;
  // Rank 1 fails when rank 0 has begun, which then has to be ended.
  LaunchedJob job(
      internal::job(2, absl::StrCat("n=$TESSERA_RESTART_COUNT; echo rank $RANK start $n "
                                    "$TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; "
                                    "echo store $TESSERA_STORE; echo token $TESSERA_JOB_TOKEN; "
                                    "echo run $TORCHELASTIC_RUN_ID; [ $n = 1 ] && exit 0; "
                                    "f=$TMPDIR/begun; [ $RANK = 1 ] || { touch $f; ",
                                    kSpin,
                                    "; }; while [ ! -e $f ]; do sleep 0.02; done; rm $f; "
                                    "exit 3")),
      {{"TMPDIR", tmp.path()}});
  EXPECT_EQ(job.wait(), 0);
  for (const char* line : {"[0] rank 0 start 0 0 of 2\n", "[1] rank 1 start 0 0 of 2\n",
                           "[0] rank 0 start 1 1 of 2\n", "[1] rank 1 start 1 1 of 2\n"}) {
    EXPECT_THAT(job.out(), HasSubstr(line));
  }
  std::map<std::string, std::set<std::string>> seen;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(job.out(), '\n'))) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words.size() == 3) seen[words[1]].insert(words[2]);
  }
  EXPECT_EQ(seen["store"].size(), 2u) << "each start meets at a place of its own";
  EXPECT_EQ(seen["token"].size(), 2u);
  EXPECT_EQ(seen["run"].size(), 1u);
  EXPECT_THAT(job.err(),
              MatchesRegex("tessera-run: rank 1 \\(pid [0-9]+\\) exited with code 3\n"
                           "tessera-run: ending the other 1 worker [^\n]*\n"
                           "tessera-run: first failure: rank 1 \\(pid [0-9]+\\) exited with code "
                           "3\ntessera-run: starting again in 0 s \\(restart 1 of 2\\)\n"));
  EXPECT_TRUE(tmp.is_empty());
}

TEST(Restarts, EndWithTheCodeOfTheLastAttempt) {
  LaunchedJob job(internal::job(1, "echo start; exit $((3 + TESSERA_RESTART_COUNT))"));
  EXPECT_EQ(job.wait(), 5);
  EXPECT_EQ(occurrences(job.out(), "start"), 3u);
  EXPECT_THAT(job.err(), HasSubstr("not starting again: 2 restarts without a newly saved step\n"));
}

TEST(Restarts, AreNoneForAConfigurationThatIsWrong) {
  for (const auto& [code, starts] : {std::pair(78, 1u), {67, 3u}}) {  // the latter is a control
    LaunchedJob job(internal::job(1, absl::StrCat("echo start; exit ", code)));
    EXPECT_EQ(job.wait(), code);
    EXPECT_EQ(occurrences(job.out(), "start"), starts) << code;
  }
}

TEST(Restarts, AreNoneForAProgramThatIsNotThere) {
  LaunchedJob job({"--max-restarts=2", "--backoff-seconds=0", "no-such-program"});
  EXPECT_EQ(job.wait(), 127);
  EXPECT_EQ(job.err(), "tessera-run: cannot find 'no-such-program'\n");
}

TEST(Restarts, AreNoneAfterASignalToTheLauncher) {
  LaunchedJob job(internal::job(2, absl::StrCat("trap 'exit 9' TERM; echo start; ", kSpin)));
  ASSERT_TRUE(job.read_until("[0] start") && job.read_until("[1] start"));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 9);
  EXPECT_EQ(occurrences(job.out(), "start"), 2u);
}

TEST(Restarts, ASignalDuringThePauseEndsTheJobAtOnce) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    testing::TemporaryDirectory tmp;
    LaunchedJob job(internal::job(1, "exit 3", {"--max-restarts=2", "--backoff-seconds=3000"}),
                    {{"TMPDIR", tmp.path()}});
    ASSERT_TRUE(job.read_until("starting again in 3000 s (restart 1 of 2)\n"));
    EXPECT_TRUE(tmp.is_empty()) << "nothing of the attempt is left";
    job.signal(SIGUSR1);  // has nobody to reach
    job.signal(signal);
    EXPECT_EQ(job.wait(), 128 + signal);
    EXPECT_THAT(job.err(), HasSubstr("got " + signal_name(signal) + "; not starting again\n"));
  }
}

/// Kills the launcher when `sign` has come, and expects that of the processes whose "pid N" it has
/// printed, and of its directory, nothing is left.
void expect_nothing_left(const std::vector<std::string>& arguments, const std::string& sign) {
  testing::TemporaryDirectory tmp;
  LaunchedJob job(arguments, {{"TMPDIR", tmp.path()}});
  ASSERT_TRUE(job.read_until(sign)) << job.err();
  std::vector<FileDescriptor> processes;
  for (const pid_t pid : process_tree(job.pid())) processes.push_back(watch_process(pid));
  for (const pid_t pid : job.printed_pids()) processes.push_back(watch_process(pid));
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(all_end(processes, kTooLong)) << sign;
  EXPECT_TRUE(tmp.is_empty()) << sign;  // its watcher, the last of them, has removed what was there
}

TEST(Restarts, AKilledLauncherLeavesNothingInAnyPhase) {
  const std::string child = absl::StrCat("trap '' TERM HUP; (", kSpin, ") & echo pid $!; ");
  expect_nothing_left(internal::job(1, absl::StrCat("[ $TESSERA_RESTART_COUNT = 0 ] && exit 3; ",
                                                    child, "echo second; ", kSpin)),
                      "[0] second");
  expect_nothing_left(internal::job(1, "exit 3", {"--max-restarts=2", "--backoff-seconds=3000"}),
                      "starting again in 3000 s");
  testing::TemporaryDirectory folder;
  expect_nothing_left(
      internal::job(
          2,
          absl::StrCat("f=", folder.path(), "/begun; if [ $RANK = 0 ]; then ", child, "touch $f; ",
                       kSpin, "; fi; ", "while [ ! -e $f ]; do sleep 0.02; done; exit 3"),
          {"--max-restarts=2", "--grace-seconds=3000"}),
      "ending the other 1 worker");
}

/// What rank 0 of the start TESSERA_RESTART_COUNT says of its steps, and how it ends: entries of
/// TEST_STARTS, "trained saved code", with commas between them.
const testing::RankProcessBody kStarts("restarts", [] {
  const auto variable = [](const char* name) { return process_environment(name).value_or(""); };
  const std::vector<std::string> starts = absl::StrSplit(variable("TEST_STARTS"), ',');
  const std::vector<std::string> numbers =
      absl::StrSplit(starts.at(std::stoul(variable("TESSERA_RESTART_COUNT"))), ' ');
  const auto page = JobPage::open(variable("TESSERA_JOB_PAGE"), 0);
  page->own_progress().note_step(std::stol(numbers.at(0)));
  page->own_progress().note_step_end(-1);
  if (numbers.at(1) != "-") page->note_saved_step(std::stol(numbers.at(1)));
  std::exit(std::stoi(numbers.at(2)));
});

LaunchedJob run_starts(const std::string& starts, std::vector<std::string> flags) {
  flags.insert(flags.end(),
               {"--backoff-seconds=0", "--",
                std::filesystem::read_symlink("/proc/self/exe").string(), "--rank_body=restarts"});
  return LaunchedJob(flags, {{"TEST_STARTS", starts}});
}

TEST(Restarts, EndWithTheSameFailureAtTheSameStep) {
  LaunchedJob job = run_starts("137 100 3,137 130 3,0 - 0", {"--max-restarts=9"});
  EXPECT_EQ(job.wait(), 3);
  EXPECT_THAT(job.err(),
              AllOf(HasSubstr(") exited with code 3 after step 137\n"),
                    HasSubstr("not starting again: the start before failed in the same way, after "
                              "the same step 137\n")));
  EXPECT_EQ(run_starts("137 100 3,138 100 3,0 - 0", {"--max-restarts=9"}).wait(), 0);
  EXPECT_EQ(run_starts("137 100 3,137 100 4,0 - 0", {"--max-restarts=9"}).wait(), 0);
}

TEST(Restarts, AreGivenBackBySavedSteps) {
  LaunchedJob job = run_starts("10 5 3,20 15 3,30 25 3,0 - 0", {"--max-restarts=1"});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.err(), HasSubstr("(restart 1 of 1; counted anew, as step 25 is saved)\n"));
  LaunchedJob control = run_starts("10 5 3,20 5 3,30 25 3,0 - 0", {"--max-restarts=1"});
  EXPECT_EQ(control.wait(), 3);
  EXPECT_THAT(control.err(), HasSubstr("not starting again: 1 restart without a newly saved"));
}

TEST(Supervised, ACommandIsStartedAgainAndKeepsItsEnvironment) {
  LaunchedJob job({"--supervise", "--max-restarts=1", "--backoff-seconds=0", "--", "/bin/sh", "-c",
                   "echo start $TESSERA_RESTART_COUNT, rank $RANK, $OMP_NUM_THREADS, $PET_NNODES, "
                   "$MASTER_ADDR; kill -9 $$"},
                  {{"PET_NNODES", "2"}, {"MASTER_ADDR", "a"}, {"RANK", "1"}, {"WORLD_SIZE", "4"}});
  EXPECT_EQ(job.wait(), 137);
  EXPECT_EQ(job.out(), "start 0, rank 1, 1, 2, a\nstart 1, rank 1, 1, 2, a\n");
  EXPECT_THAT(job.err(), MatchesRegex("tessera-run: the command \\(pid [0-9]+\\) died of signal 9 "
                                      "\\(SIGKILL\\)[^\n]*\n"
                                      "tessera-run: starting again in 0 s \\(restart 1 of 1\\)\n"
                                      "tessera-run: the command \\(pid [0-9]+\\) died of signal 9 "
                                      "\\(SIGKILL\\)[^\n]*\n"
                                      "tessera-run: not starting again: [^\n]*\n"));
}

TEST(Supervised, ItsRankZeroSaysHowFarItHasCome) {
  LaunchedJob job = run_starts("137 100 3,137 130 3", {"--supervise", "--max-restarts=9"});
  EXPECT_EQ(job.wait(), 3);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("the command (pid "), HasSubstr("the same step 137\n")));
}

/// A program that starts its own ranks, as launch() is meant to be used. Rank 0 trains two more
/// steps in each start, and rank 1 fails when it has, until the third start.
const testing::RankProcessBody kLaunches("supervised_launch", [] {
  const auto variable = [](const char* name) { return process_environment(name).value_or(""); };
  std::vector<std::string> words = {"program", "--rank_body=supervised_launch"};
  std::vector<char*> argv = {words[0].data(), words[1].data(), nullptr};
  std::exit(record_errors([&] {
    return launch(2, argv.data(), {.nproc = 2}, [&] {
      const std::string start = variable("TESSERA_RESTART_COUNT");
      const int rank = std::stoi(variable("RANK"));
      const std::string sign = absl::StrCat(variable("TMPDIR"), "/trained_", start);
      const auto page = JobPage::open(variable("TESSERA_JOB_PAGE"), rank);
      page->own_progress().note_step(2 + 2 * std::stol(start));
      page->own_progress().note_step_end(-1);
      if (rank == 0) {
        page->note_saved_step(1 + std::stol(start));
        std::ofstream(sign) << "yes";
        return 0;
      }
      while (!std::filesystem::exists(sign)) std::this_thread::yield();
      if (start != "2") throw std::runtime_error("bad batch");
      return 0;
    });
  }));
});

TEST(Supervised, AProgramThatLaunchesRanksSaysHowFarTheyHaveCome) {
  const testing::TemporaryDirectory tmp;
  LaunchedJob job(
      {"--supervise", "--max-restarts=1", "--backoff-seconds=0", "--",
       std::filesystem::read_symlink("/proc/self/exe").string(), "--rank_body=supervised_launch"},
      {{"TMPDIR", tmp.path()}});
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.err(),
              AllOf(ContainsRegex("the command .pid [0-9]+. exited with code 1 after step "
                                  "4: .launch. rank 1 .pid [0-9]+. exited with code 1 "
                                  "after step 4: bad batch\n"),
                    HasSubstr("counted anew, as step 2 is saved")));
}

/// A rank of an mpirun that fails before it has a world: only rank 0 has a record.
const testing::RankProcessBody kSupervisedRank("supervised_rank", [] {
  std::exit(record_errors([]() -> int { throw std::runtime_error("no model"); }));
});

TEST(Supervised, ARankOfTheCommandTellsWhyOnlyWhereItIsRankZero) {
  for (const std::string rank : {"0", "1"}) {
    LaunchedJob job({"--supervise", "--", std::filesystem::read_symlink("/proc/self/exe").string(),
                     "--rank_body=supervised_rank"},
                    {{"OMPI_COMM_WORLD_RANK", rank},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", rank},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
    EXPECT_EQ(job.wait(), 1);
    EXPECT_THAT(job.err(),
                HasSubstr(rank == "0" ? "exited with code 1: no model\n" : "exited with code 1\n"));
  }
}

TEST(Supervised, ASignalReachesTheWholeCommand) {
  LaunchedJob job({"--supervise", "--max-restarts=1", "--", "/bin/sh", "-c",
                   absl::StrCat("(trap 'echo child; exit 0' TERM; echo ready; ", kSpin,
                                ") & trap 'wait; exit 0' TERM; wait")});
  ASSERT_TRUE(job.read_until("ready"));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_EQ(job.out(), "ready\nchild\n");
}

TEST(KillHint, ALimitOfCpuTimeIsNamed) {
  LaunchedJob job({"/bin/sh", "-c", "kill -9 $$"}, {}, "ulimit -t 3600");
  EXPECT_EQ(job.wait(), 137);
  EXPECT_THAT(job.err(), HasSubstr("died of signal 9 (SIGKILL); "));
  LaunchedJob control({"/bin/sh", "-c", "kill -SEGV $$"}, {}, "ulimit -t 3600");
  EXPECT_EQ(control.wait(), 139);
  EXPECT_THAT(control.err(), Not(HasSubstr("ulimit")));
}

}  // namespace
}  // namespace tessera::internal
