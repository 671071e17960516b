#include "tessera/tools/run/launcher.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <set>

#include "tessera/tests/tools/launched_job.h"

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

/// Arguments that run `script` under /bin/sh in `workers` ranks.
std::vector<std::string> shell_job(int workers, const std::string& script,
                                   const std::string& grace_seconds = "30") {
  return {"--standalone",
          "--nproc-per-node",
          std::to_string(workers),
          "--grace-seconds",
          grace_seconds,
          "--",
          "/bin/sh",
          "-c",
          script};
}

/// Whether each line of `text` carries one of the prefixes "[0] " to "[workers-1] ".
bool every_line_has_a_prefix(const std::string& text, int workers) {
  if (!text.empty() && text.back() != '\n') return false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    bool has = false;
    for (int rank = 0; rank < workers; ++rank) {
      has = has || line.rfind("[" + std::to_string(rank) + "] ", 0) == 0;
    }
    if (!has) return false;
  }
  return true;
}

TEST(LauncherTest, OutputIsPrefixedByRankAndSplitByStream) {
  LaunchedJob job(shell_job(3, "echo out $RANK; echo err $RANK >&2; printf 'no end'"));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_TRUE(every_line_has_a_prefix(job.out(), 3)) << job.out();
  EXPECT_TRUE(every_line_has_a_prefix(job.err(), 3)) << job.err();
  for (const char* rank : {"0", "1", "2"}) {
    const std::string prefix = "[" + std::string(rank) + "] ";
    EXPECT_THAT(job.out(), HasSubstr(prefix + "out " + rank + "\n"));
    EXPECT_THAT(job.out(), HasSubstr(prefix + "no end\n"));
    EXPECT_THAT(job.err(), HasSubstr(prefix + "err " + rank + "\n"));
  }
}

TEST(LauncherTest, ControlTheCheckOfPrefixesSeesABareLine) {
  EXPECT_TRUE(every_line_has_a_prefix("[0] a\n[1] b\n", 2));
  EXPECT_FALSE(every_line_has_a_prefix("[0] a\nb\n", 2));
  EXPECT_FALSE(every_line_has_a_prefix("[2] a\n", 2));
  EXPECT_FALSE(every_line_has_a_prefix("[0] a", 2));
}

TEST(LauncherTest, ManyLinesArriveWhole) {
  LaunchedJob job(
      shell_job(3, "i=0; while [ $i -lt 5000 ]; do echo line $i of $RANK; i=$((i+1)); done"));
  EXPECT_EQ(job.wait(), 0);
  std::multiset<std::string> lines;
  std::istringstream stream(job.out());
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  EXPECT_EQ(lines.size(), 15000u);
  for (int rank = 0; rank < 3; ++rank) {
    for (int i = 0; i < 5000; ++i) {
      const std::string r = std::to_string(rank);
      ASSERT_EQ(lines.count("[" + r + "] line " + std::to_string(i) + " of " + r), 1u);
    }
  }
}

TEST(LauncherTest, WorkersGetTheEnvironmentOfTorchrun) {
  testing::TemporaryDirectory tmp;
  LaunchedJob job(shell_job(2, "env; echo stdin $(cat | wc -c)"), {{"TMPDIR", tmp.path()},
                                                                   {"OMP_NUM_THREADS", ""},
                                                                   {"MASTER_ADDR", "10.1.1.1"},
                                                                   {"MASTER_PORT", "29500"}});
  EXPECT_EQ(job.wait(), 0);
  for (const char* line :
       {"[1] RANK=1\n", "[1] WORLD_SIZE=2\n", "[1] LOCAL_RANK=1\n", "[1] LOCAL_WORLD_SIZE=2\n",
        "[1] GROUP_RANK=0\n", "[1] GROUP_WORLD_SIZE=1\n", "[1] ROLE_NAME=default\n",
        "[1] ROLE_RANK=1\n", "[1] ROLE_WORLD_SIZE=2\n", "[1] TORCHELASTIC_RESTART_COUNT=0\n",
        "[1] TORCHELASTIC_MAX_RESTARTS=0\n", "[1] TORCHELASTIC_USE_AGENT_STORE=False\n",
        "[0] RANK=0\n", "[0] stdin 0\n"}) {
    EXPECT_THAT(job.out(), HasSubstr(line));
  }
  EXPECT_EQ(occurrences(job.out(), "TORCHELASTIC_RUN_ID="), 2u);
  EXPECT_EQ(occurrences(job.out(), "OMP_NUM_THREADS="), 2u);
  EXPECT_EQ(occurrences(job.out(), "TESSERA_STORE=file://" + tmp.path() + "/tessera-run-"), 2u);
  EXPECT_THAT(job.out(), Not(HasSubstr("MASTER_")));
  EXPECT_THAT(job.err(), HasSubstr("OMP_NUM_THREADS is not set; giving 2 workers "));
}

TEST(LauncherTest, StoreDirectoryIsPrivateAndRemovedWithItsContents) {
  testing::TemporaryDirectory tmp;
  LaunchedJob job(shell_job(2,
                            "d=${TESSERA_STORE#file://}; d=${d%/store}; mkdir $d/of$RANK; "
                            "touch $d/of$RANK/file $d/store; echo mode $(stat -c %a $d)"),
                  {{"TMPDIR", tmp.path()}});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.out(), HasSubstr("[0] mode 700\n"));
  EXPECT_TRUE(tmp.is_empty());
}

TEST(LauncherTest, FirstFailureIsNamedAndItsCodeReturned) {
  LaunchedJob job(shell_job(3, "[ $RANK = 1 ] && exit 3; exec sleep 1000"));
  EXPECT_EQ(job.wait(), 3);
  EXPECT_THAT(job.err(), MatchesRegex("tessera-run: rank 1 \\(pid [0-9]+\\) exited with code 3\n"
                                      "tessera-run: ending the other 2 workers \\(SIGTERM, SIGKILL "
                                      "after 30 s\\)\n"
                                      "tessera-run: first failure: rank 1 \\(pid [0-9]+\\) exited "
                                      "with code 3\n"));
}

TEST(LauncherTest, DeathBySignalIsNamed) {
  LaunchedJob job(
      shell_job(4, "[ $RANK = 2 ] && { printf 'last words'; kill -9 $$; }; exec sleep 1000"));
  EXPECT_EQ(job.wait(), 137);
  EXPECT_THAT(job.err(), MatchesRegex("tessera-run: rank 2 \\(pid [0-9]+\\) died of signal 9 "
                                      "\\(SIGKILL\\)\ntessera-run: ending the other 3 (.|\n)*"));
  EXPECT_EQ(job.out(), "[2] last words\n");
  LaunchedJob terminated(shell_job(1, "kill -TERM $$"));
  EXPECT_EQ(terminated.wait(), 143);
}

TEST(LauncherTest, LaterFailuresAreNamedAfterTheFirst) {
  testing::TemporaryDirectory tmp;
  LaunchedJob job(shell_job(2,
                            "f=$TMPDIR/ready; if [ $RANK = 0 ]; then trap 'exit 5' TERM; touch $f; "
                            "while :; do sleep 0.02; done; fi; "
                            "while [ ! -e $f ]; do sleep 0.02; done; rm $f; exit 3"),
                  {{"TMPDIR", tmp.path()}});
  EXPECT_EQ(job.wait(), 3);
  EXPECT_THAT(job.err(), MatchesRegex("(.|\n)*after that, rank 0 \\(pid [0-9]+\\) exited with code "
                                      "5\n(.|\n)*first failure: rank 1 (.|\n)*"));
}

TEST(LauncherTest, OneRankThatReturnsZeroEndsNobody) {
  testing::TemporaryDirectory tmp;
  // Rank 1 waits for rank 0 to be gone before it goes on.
  LaunchedJob job(
      shell_job(2,
                "f=$TMPDIR/pid; if [ $RANK = 0 ]; then echo $$ > $f.new; mv $f.new $f; exit 0; fi; "
                "while [ ! -e $f ]; do sleep 0.02; done; while kill -0 $(cat $f) 2>/dev/null; do "
                "sleep 0.02; done; rm $f; echo still here"),
      {{"TMPDIR", tmp.path()}});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.out(), "[1] still here\n");
  EXPECT_EQ(job.err(), "");
}

TEST(LauncherTest, AWorkerThatIgnoresSigtermIsKilledAfterTheGrace) {
  testing::TemporaryDirectory tmp;
  LaunchedJob job(shell_job(2,
                            "f=$TMPDIR/ready; if [ $RANK = 0 ]; then trap '' TERM; echo pid $$; "
                            "touch $f; while :; do sleep 0.02; done; fi; "
                            "while [ ! -e $f ]; do sleep 0.02; done; rm $f; exit 7",
                            "0.2"),
                  {{"TMPDIR", tmp.path()}});
  ASSERT_TRUE(job.read_until("pid "));
  EXPECT_EQ(job.wait(), 7);
  EXPECT_THAT(job.err(), HasSubstr("not ended after 0.2 s; sending SIGKILL"));
  EXPECT_EQ(kill(job.printed_pids().at(0), 0), -1);
}

TEST(LauncherTest, ProcessesThatAWorkerLeavesBehindAreEnded) {
  for (const int code : {0, 4}) {
    const size_t workers =
        code == 0 ? 2 : 1;  // a failing rank could end the other before it prints
    LaunchedJob job(shell_job(static_cast<int>(workers),
                              "sleep 1000 & echo pid $!; exit " + std::to_string(code)));
    EXPECT_EQ(job.wait(), code);
    const std::vector<pid_t> pids = job.printed_pids();
    ASSERT_EQ(pids.size(), workers);
    for (const pid_t pid : pids) EXPECT_EQ(kill(pid, 0), -1);
    if (code == 0) {
      EXPECT_THAT(job.err(), HasSubstr("rank 0 ended and left processes behind; ending them"));
    }
  }
}

TEST(LauncherTest, AProcessThatOutlivesItsWorkerForAMomentMayFinish) {
  LaunchedJob job(
      shell_job(1, "(while kill -0 $$ 2>/dev/null; do sleep 0.02; done; echo late) & exit 0"));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.out(), "[0] late\n");
  EXPECT_EQ(job.err(), "");
}

constexpr const char* kSaves =
    "trap 'echo saved; exit 0' INT TERM HUP QUIT; echo ready; while :; do sleep 0.02; done";

TEST(LauncherTest, ASignalIsPassedOnOnceAndWorkersMaySave) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    LaunchedJob job(shell_job(2, kSaves));
    ASSERT_TRUE(job.read_until("[0] ready") && job.read_until("[1] ready"));
    job.signal(signal);
    EXPECT_EQ(job.wait(), 128 + signal);
    EXPECT_EQ(occurrences(job.out(), "saved"), 2u);
    EXPECT_THAT(job.err(),
                HasSubstr("got " + signal_name(signal) + "; passing it on to 2 workers"));
    EXPECT_THAT(job.err(), Not(HasSubstr("sending SIGKILL")));
  }
}

TEST(LauncherTest, ASecondSignalKills) {
  LaunchedJob job(shell_job(2, "trap '' INT; echo ready; while :; do sleep 0.02; done", "3000"));
  ASSERT_TRUE(job.read_until("[0] ready") && job.read_until("[1] ready"));
  // The same signal right after the first is taken as one request: repeat until it counts.
  for (int i = 0; i < 600 && job.err().find("SIGKILL\n") == std::string::npos; ++i) {
    job.signal(SIGINT);
    job.read_for_a_moment();
  }
  EXPECT_EQ(job.wait(), 128 + SIGINT);
  EXPECT_THAT(job.err(), HasSubstr("got SIGINT after SIGINT; sending SIGKILL"));
}

TEST(LauncherTest, OtherSignalsArePassedOnWithoutEnding) {
  LaunchedJob job(shell_job(1,
                            "trap 'echo usr1' USR1; trap 'exit 0' USR2; echo ready; "
                            "while :; do sleep 0.02; done"));
  ASSERT_TRUE(job.read_until("ready"));
  job.signal(SIGUSR1);
  ASSERT_TRUE(job.read_until("usr1"));
  job.signal(SIGUSR2);
  EXPECT_EQ(job.wait(), 0);
}

TEST(LauncherTest, ASignalIgnoredAtTheStartStaysIgnored) {
  LaunchedJob job(shell_job(1, "kill -HUP $PPID; echo alive"), {}, "trap '' HUP");
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.out(), "[0] alive\n");
  EXPECT_EQ(job.err(), "");
}

TEST(LauncherTest, AStoppedTerminalDoesNotStopTheLauncher) {
  // Far more than the pipes and the launcher hold, and nobody reads it.
  LaunchedJob job(shell_job(2, "echo started >&2; exec yes 0123456789"));
  ASSERT_TRUE(job.read_err_until("[0] started") && job.read_err_until("[1] started"));
  job.signal(SIGTERM);
  EXPECT_TRUE(job.read_err_until("got SIGTERM"));
  EXPECT_EQ(job.wait(), 143);
  EXPECT_TRUE(every_line_has_a_prefix(job.out(), 2));
}

TEST(LauncherTest, AReaderThatLeavesDoesNotEndTheWorkers) {
  testing::TemporaryDirectory tmp;
  LaunchedJob job(shell_job(1,
                            "while [ ! -e $TMPDIR/go ]; do sleep 0.02; done; rm $TMPDIR/go; "
                            "echo unread; while :; do echo more; sleep 0.02; done"),
                  {{"TMPDIR", tmp.path()}});
  job.stop_reading_stdout();
  std::ofstream(tmp.path() + "/go");
  EXPECT_TRUE(
      job.read_err_until("cannot write to stdout: Broken pipe; what the workers write there"));
  EXPECT_GE(process_tree(job.pid()).size(), 3u);  // launcher, watcher, worker
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_TRUE(tmp.is_empty());
}

TEST(LauncherTest, TwoAtOnceDoNotMeet) {
  testing::TemporaryDirectory tmp;
  const std::string script = "echo store $TESSERA_STORE; exec sleep 1000";
  LaunchedJob first(shell_job(2, script), {{"TMPDIR", tmp.path()}});
  LaunchedJob second(shell_job(2, script), {{"TMPDIR", tmp.path()}});
  for (LaunchedJob* job : {&first, &second}) {
    ASSERT_TRUE(job->read_until("[0] store") && job->read_until("[1] store"));
  }
  const auto store_of = [](const LaunchedJob& job) {
    const size_t at = job.out().find("file://");
    return job.out().substr(at, job.out().find('\n', at) - at);
  };
  EXPECT_EQ(occurrences(first.out(), store_of(first)), 2u);
  EXPECT_EQ(occurrences(second.out(), store_of(second)), 2u);
  EXPECT_NE(store_of(first), store_of(second));
  first.signal(SIGTERM);
  EXPECT_EQ(first.wait(), 143);
  // The end of one touches nothing of the other.
  EXPECT_TRUE(
      std::filesystem::exists(std::filesystem::path(store_of(second).substr(7)).parent_path()));
  second.signal(SIGTERM);
  EXPECT_EQ(second.wait(), 143);
  EXPECT_TRUE(tmp.is_empty());
}

/// The internet sockets that `processes` hold.
int count_internet_sockets(const std::vector<pid_t>& processes) {
  std::set<std::string> inodes;
  for (const char* table : {"tcp", "tcp6", "udp", "udp6"}) {
    std::ifstream file(std::string("/proc/self/net/") + table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string field;
      for (int i = 0; i < 10; ++i) fields >> field;
      inodes.insert("socket:[" + field + "]");
    }
  }
  int count = 0;
  for (const pid_t pid : processes) {
    std::error_code gone;
    const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
    for (const auto& entry : std::filesystem::directory_iterator(folder, gone)) {
      count += static_cast<int>(inodes.count(std::filesystem::read_symlink(entry, gone).string()));
    }
  }
  return count;
}

TEST(LauncherTest, NoPortIsOpened) {
  LaunchedJob job(shell_job(2, "echo ready; exec sleep 1000"));
  ASSERT_TRUE(job.read_until("[0] ready") && job.read_until("[1] ready"));
  const std::vector<pid_t> tree = process_tree(job.pid());
  EXPECT_EQ(tree.size(), 4u);  // launcher, watcher, two workers
  EXPECT_EQ(count_internet_sockets(tree), 0);
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
}

TEST(LauncherTest, ControlTheCheckOfPortsSeesOne) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&any), sizeof(any)), 0);
  const int before = count_internet_sockets({getpid()});
  ASSERT_EQ(listen(socket.get(), 1), 0);
  EXPECT_EQ(count_internet_sockets({getpid()}), before + 1);
}

TEST(LauncherTest, AProgramThatCannotRunIsNamed) {
  testing::TemporaryDirectory tmp;
  const std::map<std::string, std::string> environment = {{"TMPDIR", tmp.path()}};
  LaunchedJob missing({"--nproc-per-node=3", "no-such-program"}, environment);
  EXPECT_EQ(missing.wait(), kNotFoundExit);
  EXPECT_EQ(missing.err(), "tessera-run: cannot find 'no-such-program'\n");

  LaunchedJob folder({tmp.path()}, environment);
  EXPECT_EQ(folder.wait(), kCannotRunExit);
  EXPECT_EQ(folder.err(), "tessera-run: cannot run '" + tmp.path() +
                              "': Permission denied; name an executable file (chmod +x), a script "
                              "with its #! line\n");
  EXPECT_TRUE(tmp.is_empty());

  const std::string script = tmp.path() + "/run-me";
  std::ofstream(script) << "#!/no/such/interpreter\n";
  chmod(script.c_str(), 0700);
  LaunchedJob orphan({script}, environment);
  EXPECT_EQ(orphan.wait(), kNotFoundExit);
  EXPECT_THAT(orphan.err(), HasSubstr("the file is there, but not the interpreter"));

  LaunchedJob here({"run-me"}, environment, "cd " + tmp.path());
  EXPECT_EQ(here.wait(), kNotFoundExit);
  EXPECT_THAT(here.err(), HasSubstr("did you mean './run-me'?"));
  // Of one descriptor more a rank has too few.
  for (const char* few : {"ulimit -n 20", "ulimit -n 21", "ulimit -f 0"}) {
    EXPECT_EQ(LaunchedJob(shell_job(64, ":"), environment, few).wait(), kSystemExit) << few;
  }
}

TEST(LauncherTest, BadUsageListsAllProblems) {
  LaunchedJob job({"--nnodes", "2", "--nproc-per-node", "many"});
  EXPECT_EQ(job.wait(), kUsageExit);
  EXPECT_THAT(job.err(), HasSubstr("tessera-run: --nnodes 2 is refused: one host only"));
  EXPECT_THAT(job.err(), HasSubstr("tessera-run: --nproc-per-node: got 'many'"));
  EXPECT_THAT(job.err(), HasSubstr("tessera-run: no program is given"));
  EXPECT_EQ(job.out(), "");
  LaunchedJob help({"--help"});
  EXPECT_EQ(help.wait(), 0);
  EXPECT_THAT(help.out(), HasSubstr("Usage: tessera-run"));
}

TEST(LauncherTest, APlaceForTheStoreThatIsMissingIsNamed) {
  LaunchedJob job({"true"}, {{"TMPDIR", "/no/such/place"}});
  EXPECT_EQ(job.wait(), kNoStoreExit);
  EXPECT_THAT(job.err(),
              HasSubstr("cannot make a directory under /no/such/place: No such file or directory"));
}

}  // namespace
}  // namespace tessera::internal
