#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/core/process/progress_report.h"
#include "tessera/environment.h"
#include "tessera/launch.h"
#include "tessera/process_group.h"
#include "tessera/record_errors.h"
#include "tessera/tests/support/patience.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/tools/launched_job.h"

// What tessera-run --status tells of jobs, and what --heartbeat-timeout does to ranks.
namespace tessera::internal {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::join;
using testing::kPatience;
using ::testing::MatchesRegex;
using ::testing::Not;
using testing::RankProcessBody;
using testing::say;
using testing::TemporaryDirectory;

std::string value(const char* name) { return process_environment(name).value_or(""); }

/// Does not return before the test has made the file of that name.
void until_told(const std::string& name) {
  while (!std::filesystem::exists(value("TMPDIR") + "/" + name)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::vector<std::string> job_of_body(int ranks, const std::string& body,
                                     std::vector<std::string> flags = {}) {
  flags.insert(flags.end(),
               {"--nproc-per-node", absl::StrCat(ranks), "--",
                std::filesystem::read_symlink("/proc/self/exe").string(), "--rank_body=" + body});
  return flags;
}

struct Answer {
  int exit_code;
  std::string out;
  std::string err;
};

Answer ask(std::vector<std::string> more) {
  more.insert(more.begin(), "--status");
  LaunchedJob status(more);
  const int code = status.wait();
  return {code, status.out(), status.err()};
}

/// Asks until the answer is as expected, and returns it; fails after too long.
json ask_until(pid_t job, const std::function<bool(const json&)>& is_expected) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  Answer answer;
  do {
    answer = ask({absl::StrCat(job), "--json"});
    const json status = json::parse(answer.out, nullptr, /*allow_exceptions=*/false);
    if (answer.exit_code == 0 && is_expected(status)) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (std::chrono::steady_clock::now() < deadline);
  ADD_FAILURE() << answer.out << answer.err;
  return json();
}

/// Whether the ranks are in these states.
std::function<bool(const json&)> states(const std::vector<std::string>& expected) {
  return [expected](const json& status) {
    std::vector<std::string> states;
    for (const json& rank : status["ranks"]) states.push_back(rank["state"]);
    return states == expected;
  };
}

/// All wait for rank 1, which waits for the test.
const RankProcessBody kWaits("status_waits", [] {
  const auto world = join();
  world->barrier();
  if (world->rank() == 1) until_told("go");
  world->barrier();
});

TEST(Status, TellsWhoWaitsForWhomAndWhy) {
  const TemporaryDirectory tmp;
  LaunchedJob job(job_of_body(3, "status_waits"), {{"TMPDIR", tmp.path()}});
  const json waiting = ask_until(job.pid(), states({"waiting", "running", "waiting"}));
  ASSERT_FALSE(waiting.is_null());
  for (const size_t rank : {0, 2}) {
    const json& wait = waiting["ranks"][rank]["wait"];
    EXPECT_THAT(wait["ranks"].get<std::vector<int>>(), ElementsAre(1));
    EXPECT_EQ(wait["group"], "world");
    EXPECT_THAT(wait["call"].get<std::string>(), HasSubstr("barrier"));
    EXPECT_THAT(waiting["ranks"][rank]["text"].get<std::string>(),
                AllOf(HasSubstr("waiting "), HasSubstr(" for rank 1, which runs")));
  }
  const pid_t pid = job.pid();
  EXPECT_EQ(waiting["job"], pid);
  EXPECT_FALSE(waiting["supervised"]);

  const pid_t frozen = waiting["ranks"][1]["pid"];
  ::kill(frozen, SIGSTOP);
  const json stopped = ask_until(job.pid(), states({"waiting", "stopped", "waiting"}));
  EXPECT_THAT(stopped["ranks"][0]["text"].get<std::string>(),
              HasSubstr(" for rank 1, which is stopped"));
  const Answer table = ask({absl::StrCat(job.pid())});
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_THAT(table.out,
              MatchesRegex("job [0-9]+: [^\n]*tessera-run [^\n]*\nrunning for [^\n]*\n\n"
                           " rank       pid      step    last step  steps/s  ratio  state\n"
                           "    0 [^\n]*waiting [^\n]*\n    1 [^\n]* stopped\n    2 [^\n]*\n"));
  EXPECT_THAT(table.out, Not(HasSubstr("\033"))) << "not on a terminal";
  ::kill(frozen, SIGCONT);
  std::ofstream(tmp.path() + "/go") << "yes";
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(ask({absl::StrCat(pid)}).exit_code, 69);
}

/// Rank 2 leaves at once; the others have no group.
const RankProcessBody kStatusLeaves("status_leaves", [] {
  if (value("RANK") == "2") std::exit(0);
  until_told("go");
});

TEST(Status, TellsWhoIsGoneAndWhoHasNotBegun) {
  const TemporaryDirectory tmp;
  LaunchedJob job(job_of_body(3, "status_leaves"), {{"TMPDIR", tmp.path()}});
  const json status = ask_until(job.pid(), states({"starting", "starting", "gone"}));
  ASSERT_FALSE(status.is_null());
  EXPECT_EQ(status["ranks"][2]["exit_code"], 0);
  EXPECT_EQ(status["ranks"][2]["text"], "gone (exited with code 0)");
  std::ofstream(tmp.path() + "/go") << "yes";
  EXPECT_EQ(job.wait(), 0);
}

/// Steps in which rank 1 computes three times as long as the others, until the test has seen it.
const RankProcessBody kStraggles("status_straggles", [] {
  const auto world = join();
  const std::string told = value("TMPDIR") + "/go";
  bool is_over = false;
  for (int64_t step = 1; !is_over; ++step) {
    report_phase(Phase::kForward);
    std::this_thread::sleep_for(std::chrono::milliseconds(world->rank() == 1 ? 60 : 20));
    report_phase(Phase::kStep);
    const bool sees = world->rank() == 0 && std::filesystem::exists(told);
    const auto all = world->all_gather_bytes(sees ? "over" : "", "over");
    is_over = all.front() == "over";
    report_step(step);
    report_step_end(/*sees_waits=*/true);
  }
});

TEST(Status, TellsWhoHoldsUpTheOthers) {
  const TemporaryDirectory tmp;
  LaunchedJob job(job_of_body(3, "status_straggles"), {{"TMPDIR", tmp.path()}});
  const auto ratio = [](const json& status, size_t rank) {
    const json& found = status["ranks"][rank]["straggler_ratio"];
    return found.is_null() ? 0.0 : found.get<double>();
  };
  const json status = ask_until(job.pid(), [&](const json& status) {
    const double others = std::max(ratio(status, 0), ratio(status, 2));
    return others > 0 && ratio(status, 1) > 1.5 * others;
  });
  ASSERT_FALSE(status.is_null()) << "although it has the same steps per second";
  EXPECT_GT(status["ranks"][1]["step"], 1);
  EXPECT_GT(status["ranks"][0]["steps_per_second"], 0);
  EXPECT_GT(status["ranks"][0]["own_seconds_per_step"], 0);
  std::ofstream(tmp.path() + "/go") << "yes";
  EXPECT_EQ(job.wait(), 0) << job.err();
}

/// A rank alone, as --supervise knows it.
const RankProcessBody kAlone("status_alone", [] {
  const auto world = join();
  report_step(5);
  report_step_end(true);
  until_told("go");
});

TEST(Status, OfASupervisedCommandIsThatOfRankZero) {
  const TemporaryDirectory tmp;
  LaunchedJob job(
      {"--supervise", "--", "/bin/sh", "-c", "\"$@\"; exit $?", "sh",
       std::filesystem::read_symlink("/proc/self/exe").string(), "--rank_body=status_alone"},
      {{"TMPDIR", tmp.path()}, {"RANK", ""}, {"WORLD_SIZE", ""}});
  const json status = ask_until(job.pid(), [](const json& status) {
    return status["ranks"].size() == 1 && status["ranks"][0]["step"] == 5;
  });
  ASSERT_FALSE(status.is_null());
  EXPECT_TRUE(status["supervised"]);
  EXPECT_EQ(status["ranks"][0]["state"], "running");
  std::ofstream(tmp.path() + "/go") << "yes";
  EXPECT_EQ(job.wait(), 0) << job.err();
}

/// A program that starts its ranks itself.
const RankProcessBody kStatusLaunches("status_launches", [] {
  std::vector<std::string> words = {"program", "--rank_body=status_launches"};
  std::vector<char*> argv = {words[0].data(), words[1].data(), nullptr};
  if (value("TESSERA_LAUNCHER_PID").empty()) say(absl::StrCat("pid ", ::getpid()));
  std::exit(record_errors([&] {
    return launch(2, argv.data(), {.nproc = 2}, [] {
      const auto world = join();
      until_told("go");
      return 0;
    });
  }));
});

TEST(Status, IsKnownOfAProgramThatLaunchesItsRanks) {
  const TemporaryDirectory tmp;
  LaunchedJob job({"--supervise", "--", std::filesystem::read_symlink("/proc/self/exe").string(),
                   "--rank_body=status_launches"},
                  {{"TMPDIR", tmp.path()}, {"RANK", ""}, {"WORLD_SIZE", ""}});
  ASSERT_TRUE(job.read_until("\n")) << job.err();
  ASSERT_EQ(job.printed_pids().size(), 1u);
  const json status = ask_until(job.printed_pids()[0], states({"running", "running"}));
  EXPECT_FALSE(status.is_null());
  // Two launchers have a job here, at least.
  const Answer several = ask({});
  EXPECT_EQ(several.exit_code, 64);
  EXPECT_THAT(several.err, AllOf(HasSubstr(" jobs run here; say which one: tessera-run --status "),
                                 HasSubstr(absl::StrCat("\n  ", job.pid(), ": 1 rank, "))));
  std::ofstream(tmp.path() + "/go") << "yes";
  EXPECT_EQ(job.wait(), 0) << job.err();
}

TEST(Status, OfWhatIsNoJobIsAnErrorWithARemedy) {
  const Answer none = ask({"4194304"});
  EXPECT_EQ(none.exit_code, 69);
  EXPECT_THAT(none.err, HasSubstr("there is no process 4194304 here; in a container it has "));
  EXPECT_EQ(none.out, "");
  const Answer other = ask({absl::StrCat(::getpid())});
  EXPECT_EQ(other.exit_code, 69);
  EXPECT_THAT(other.err, HasSubstr(" has no ranks now: it is not what started a job"));
}

/// Ranks that meet again and again, until rank 1 does in the first attempt what TEST_MODE says.
const RankProcessBody kFreezes("heartbeat_freezes", [] {
  const auto world = join();
  for (int step = 1; step <= 3; ++step) {
    world->barrier();
    report_step(step);
    report_step_end(true);
  }
  if (world->rank() == 1 && value("TESSERA_RESTART_COUNT") == "0") {
    const std::string mode = value("TEST_MODE");
    say("frozen");
    if (mode == "stop") ::raise(SIGSTOP);
    volatile int turns = 0;
    while (mode == "loop") turns = turns + 1;
    if (mode == "wait") until_told("go");
    // Longer than the time-out, but it says that it goes on.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(6);
    while (mode == "work" && std::chrono::steady_clock::now() < end) report_life();
  }
  world->barrier();
  say("over");
});

constexpr const char* kFrozen =
    "is killed, as it has begun and finished nothing for 3 s (--heartbeat-timeout): it ";

TEST(HeartbeatTimeout, ARankThatIsStoppedCountsAsDeadAndTheJobStartsAgain) {
  LaunchedJob job(job_of_body(3, "heartbeat_freezes",
                              {"--heartbeat-timeout=3", "--max-restarts=1", "--backoff-seconds=0"}),
                  {{"TEST_MODE", "stop"}});
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.err(), AllOf(HasSubstr("tessera-run: rank 1 (pid "), HasSubstr(kFrozen),
                               HasSubstr(": it is stopped (SIGSTOP or a debugger), after step 3\n"),
                               HasSubstr("first failure: rank 1 (pid "),
                               HasSubstr("starting again in 0 s (restart 1 of 1)\n")));
  EXPECT_EQ(occurrences(job.out(), "over"), 3u);
}

TEST(HeartbeatTimeout, SoDoesARankInAnEndlessLoop) {
  LaunchedJob job(job_of_body(3, "heartbeat_freezes", {"--heartbeat-timeout=3"}),
                  {{"TEST_MODE", "loop"}});
  EXPECT_EQ(job.wait(), 137) << job.err();
  EXPECT_THAT(job.err(), AllOf(HasSubstr(absl::StrCat(kFrozen, "computes, after step 3\n")),
                               Not(HasSubstr("memory")), Not(HasSubstr("first failure: rank 0")),
                               Not(HasSubstr("first failure: rank 2"))));
  EXPECT_THAT(job.out(), Not(HasSubstr("over")));
}

TEST(HeartbeatTimeout, ARankThatSaysThatItGoesOnIsNotFrozenNorAreThoseThatWaitForIt) {
  LaunchedJob job(job_of_body(3, "heartbeat_freezes", {"--heartbeat-timeout=3"}),
                  {{"TEST_MODE", "work"}});
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.err(), Not(HasSubstr("heartbeat")));
}

TEST(HeartbeatTimeout, WithoutOneNobodyIsJudged) {
  const TemporaryDirectory tmp;
  LaunchedJob job(job_of_body(2, "heartbeat_freezes"),
                  {{"TEST_MODE", "wait"}, {"TMPDIR", tmp.path()}});
  // As long as it takes until rank 1 shows as silent.
  EXPECT_FALSE(ask_until(job.pid(), states({"waiting", "silent"})).is_null());
  std::ofstream(tmp.path() + "/go") << "yes";
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.err(), Not(HasSubstr("heartbeat")));
}

}  // namespace
}  // namespace tessera::internal
