#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include <gmock/gmock.h>

#include "tessera/core/process/error_file.h"
#include "tessera/record_errors.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/tools/launched_job.h"

// The files of a job: logs, and those in which workers say why they fail.
namespace tessera::internal {
namespace {

using ::testing::AllOf;
using testing::content_of;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

class WorkerFiles : public ::testing::Test {
 protected:
  std::string logs() const { return folder_.path() + "/logs/of a run"; }
  std::string log(int attempt, int rank, const std::string& name) const {
    return content_of(absl::StrCat(logs(), "/attempt_", attempt, "/", rank, "/", name));
  }

  /// Two ranks, twice: the first start fails.
  LaunchedJob run(std::vector<std::string> flags, const std::string& script,
                  const std::map<std::string, std::string>& environment = {},
                  const std::string& shell = "") const {
    flags.insert(flags.end(), {"--nproc-per-node=2", "--max-restarts=1", "--backoff-seconds=0",
                               "--", "/bin/sh", "-c", script});
    return LaunchedJob(flags, environment, shell);
  }

  const testing::TemporaryDirectory folder_;
};

/// No rank fails before both have spoken.
constexpr const char* kSays =
    "n=$TESSERA_RESTART_COUNT; printf \"out $RANK of $n\"; echo err $RANK >&2; "
    "touch $MEETING/$RANK.$n; while [ ! -e $MEETING/0.$n -o ! -e $MEETING/1.$n ]; do sleep 0.02; "
    "done; exit $((n == 0))";

TEST_F(WorkerFiles, LogsAreOfEachAttemptAndRank) {
  LaunchedJob job =
      run({"--log-dir", logs(), "--redirects=3"}, kSays, {{"MEETING", folder_.path()}});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.out(), "");
  EXPECT_THAT(job.err(), Not(HasSubstr("[0]")));
  EXPECT_THAT(testing::names_in(logs()), ElementsAre("attempt_0", "attempt_1"));
  for (const int attempt : {0, 1}) {
    for (const int rank : {0, 1}) {
      EXPECT_EQ(log(attempt, rank, "stdout.log"), absl::StrCat("out ", rank, " of ", attempt));
      EXPECT_EQ(log(attempt, rank, "stderr.log"), absl::StrCat("err ", rank, "\n"));
    }
  }
}

TEST_F(WorkerFiles, WhatIsTeedIsPrintedToo) {
  LaunchedJob job = run({"--log-dir", logs(), "--redirects=0:2,1:2", "--tee=0:1,1:2"}, kSays,
                        {{"MEETING", folder_.path()}});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.out(), AllOf(HasSubstr("[0] out 0 of 1\n"), HasSubstr("[1] out 1 of 1\n")));
  EXPECT_THAT(job.err(), AllOf(HasSubstr("[1] err 1\n"), Not(HasSubstr("[0] err 0"))));
  EXPECT_THAT(testing::names_in(logs() + "/attempt_1/0"), ElementsAre("stderr.log", "stdout.log"));
  EXPECT_THAT(testing::names_in(logs() + "/attempt_1/1"), ElementsAre("stderr.log"));
}

TEST_F(WorkerFiles, ALaterJobAppends) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(LaunchedJob({"--log-dir", logs(), "-r1", "--redirects=1", "echo", "a"}).wait(), 64);
    EXPECT_EQ(LaunchedJob({"--log-dir", logs(), "-r", "1", "echo", "a"}).wait(), 0);
  }
  EXPECT_EQ(log(0, 0, "stdout.log"), "a\na\n");
}

TEST_F(WorkerFiles, AFullDiskIsSaidAndEndsNobody) {
  const std::string lines = "i=0; while [ $i -lt 4000 ]; do echo line $i; i=$((i+1)); done";
  // Blocks of 512 bytes: 32 KiB.
  LaunchedJob job({"--log-dir", logs(), "--tee=1", "--", "/bin/sh", "-c", lines}, {},
                  "ulimit -f 64");
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.err(),
              HasSubstr(absl::StrCat("tessera-run: cannot write to '", logs(),
                                     "/attempt_0/0/stdout.log': File too large; what comes after "
                                     "this is not kept there\n")));
  EXPECT_EQ(occurrences(job.err(), "cannot write to"), 1u);
  EXPECT_THAT(job.out(), HasSubstr("[0] line 3999\n")) << "the terminal has all of it";
  EXPECT_EQ(log(0, 0, "stdout.log").size(), 64u * 512);
}

TEST_F(WorkerFiles, APlaceThatCannotBeWrittenToIsNamed) {
  std::ofstream(folder_.path() + "/file");
  LaunchedJob job({"--log-dir", folder_.path() + "/file", "true"});
  EXPECT_EQ(job.wait(), 73);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("--log-dir: cannot make '" + folder_.path() + "/file/"),
                               HasSubstr("Not a directory; name a directory that can be")));
}

TEST_F(WorkerFiles, ARestartGoesOnWithoutLogsThatCannotBeMade) {
  // A file takes the place of the second start's folder.
  const std::string script = absl::StrCat(
      "n=$TESSERA_RESTART_COUNT; echo start $n $TORCHELASTIC_ERROR_FILE; [ $n = 1 ] && exit 0; "
      "[ $RANK = 0 ] && exec sleep 1000; touch '",
      logs(), "/attempt_1'; exit 3");
  LaunchedJob job = run({"--log-dir", logs(), "--tee=1"}, script, {{"TMPDIR", folder_.path()}});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(occurrences(job.err(), "cannot make"), 1u) << job.err();
  EXPECT_THAT(job.err(),
              AllOf(HasSubstr("--log-dir: cannot make '" + logs() + "/attempt_1/0/': "),
                    HasSubstr("; going on without the log files that cannot be made\n")));
  for (const char* rank : {"[0]", "[1]"}) {
    EXPECT_THAT(job.out(),
                HasSubstr(absl::StrCat(rank, " start 1 ", folder_.path(), "/tessera-run-")))
        << "where its error file lies";
  }
}

constexpr const char* kLeaves =
    "[ $RANK = 0 ] && exec sleep 1000; "
    "echo '{\"message\": {\"message\": \"bad batch\", \"extraInfo\": {\"timestamp\": \"1\"}}}' > "
    "$TORCHELASTIC_ERROR_FILE; echo file $TORCHELASTIC_ERROR_FILE; exit 3";

TEST_F(WorkerFiles, TheMessageOfTheFirstFailureIsShownAndPassedOn) {
  const std::string outer = folder_.path() + "/termination-log";
  std::ofstream(outer) << "old text";
  LaunchedJob job =
      run({}, kLeaves, {{"TMPDIR", folder_.path()}, {"TORCHELASTIC_ERROR_FILE", outer}});
  EXPECT_EQ(job.wait(), 3);
  EXPECT_THAT(job.err(), HasSubstr("tessera-run: rank 1 left this in its error file: bad batch\n"));
  EXPECT_THAT(job.out(), HasSubstr("[1] file " + folder_.path() + "/tessera-run-"));
  EXPECT_THAT(testing::names_in(folder_.path()), ElementsAre("termination-log"));
  EXPECT_THAT(read_error_file(outer),
              AllOf(HasSubstr("rank 1 (pid "), HasSubstr("exited with code 3: bad batch")));
}

const testing::RankProcessBody kThrows("worker_files_throws", [] {
  std::exit(record_errors([]() -> int { throw std::runtime_error("no \"data\""); }));
});

TEST_F(WorkerFiles, WhatARankRecordsIsSaidOnce) {
  const std::string outer = folder_.path() + "/termination-log";
  LaunchedJob job(
      {"--log-dir", logs(), "--", std::filesystem::read_symlink("/proc/self/exe").string(),
       "--rank_body=worker_files_throws"},
      {{"TORCHELASTIC_ERROR_FILE", outer}});
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.err(), HasSubstr("exited with code 1: no \"data\"\n"));
  EXPECT_THAT(job.err(), Not(HasSubstr("left this in its error file")));
  EXPECT_EQ(read_error_file(logs() + "/attempt_0/0/error.json"), "no \"data\"");
  EXPECT_THAT(read_error_file(outer), EndsWith(") exited with code 1: no \"data\""));
}

const testing::RankProcessBody kThrowsAText("worker_files_throws_a_text", [] {
  std::exit(record_errors([]() -> int { throw std::runtime_error(std::getenv("TEST_TEXT")); }));
});

TEST_F(WorkerFiles, ATextThatIsShownInAnotherWayIsSaidOnce) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  for (const std::string& text :
       {std::string("no \x1b[31mdata"), std::string("no data \xff"), std::string(3000, 'x')}) {
    LaunchedJob job({"--log-dir", logs(), "--redirects=3", "--", program,
                     "--rank_body=worker_files_throws_a_text"},
                    {{"TEST_TEXT", text}});
    EXPECT_EQ(job.wait(), 1);
    EXPECT_THAT(job.err(), HasSubstr(absl::StrCat(
                               "exited with code 1: ", shown_message(text).substr(0, 2000), "\n")));
    EXPECT_THAT(job.err(), Not(HasSubstr("left this in its error file")));
  }
}

TEST_F(WorkerFiles, ErrorFilesLieWithTheLogs) {
  std::filesystem::create_directories(logs() + "/attempt_0/1");
  std::ofstream(logs() + "/attempt_0/1/error.json") << "{\"message\": \"of an earlier job\"}";
  LaunchedJob job = run({"--log-dir", logs()}, kLeaves);
  EXPECT_EQ(job.wait(), 3);
  EXPECT_THAT(log(1, 1, "error.json"), HasSubstr("bad batch"));
  LaunchedJob silent = run({"--log-dir", logs()}, "[ $RANK = 0 ] && exec sleep 1000; exit 3");
  EXPECT_EQ(silent.wait(), 3);
  EXPECT_THAT(silent.err(), Not(HasSubstr("error file"))) << "that of an earlier job is no more";
}

}  // namespace
}  // namespace tessera::internal
