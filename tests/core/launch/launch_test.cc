#include "tessera/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/full.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/process/file_descriptor.h"
#include "tessera/core/process/process_status.h"
#include "tessera/environment.h"
#include "tessera/errors.h"
#include "tessera/stop_request.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/patience.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::string env_of(const char* name) { return process_environment(name).value_or("none"); }

/// Ends this process as main() would that returns `code`.
[[noreturn]] void return_from_main(int code) {
  std::fflush(stdout);
  std::_Exit(code);
}

/// What main() of a program does that launches ranks: this binary, which comes back to the body
/// called `body`. Says how it failed, if it did.
int launch_body(const std::string& body, const LaunchOptions& options,
                const std::function<int()>& fn, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {"./core_test", absl::StrCat("--rank_body=", body)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  try {
    return launch(static_cast<int>(arguments.size()), argv.data(), options, fn);
  } catch (const RankError& error) {
    say(absl::StrCat("failed: rank ", error.ending().rank, ", code ", error.ending().exit_code,
                     ", signal ", error.ending().signal, ": ", error.what()));
    return error.ending().exit_code;
  }
}

/// As an ordinary program, of no launcher.
const std::map<std::string, std::string> kNoJob = {{"RANK", ""},
                                                   {"WORLD_SIZE", ""},
                                                   {"LOCAL_RANK", ""},
                                                   {"LOCAL_WORLD_SIZE", ""},
                                                   {"TESSERA_STORE", ""}};

RankProcessOptions program_options(std::map<std::string, std::string> more = {}) {
  more.insert(kNoJob.begin(), kNoJob.end());
  return {.environment = more, .are_executed = true};
}

RankResult run_program(const std::string& body, std::map<std::string, std::string> more = {}) {
  return run_rank_processes(1, body, program_options(std::move(more)))[0];
}

int64_t sum_over_ranks() {
  const auto world = join();
  const at::Tensor sum = at::full({1}, world->rank() + 1, at::kLong);
  world->all_reduce(sum, ReduceOp::kSum, "sum")->wait();
  return sum.item<int64_t>();
}

const RankProcessBody kLaunchSums("launch_sums", [] {
  const int code = launch_body("launch_sums", {.nproc = 3}, [] {
    say(absl::StrCat("rank ", env_of("RANK"), ": ", sum_over_ranks()));
    return 0;
  });
  say(absl::StrCat("rank ", env_of("RANK"), " has returned ", code));
  return_from_main(code);
});

TEST(Launch, RanksMeetAndAllReturn) {
  const RankResult result = run_program("launch_sums");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  for (const char* line : {"rank 0: 6\n", "rank 1: 6\n", "rank 2: 6\n", "rank 1 has returned 0\n",
                           "rank none has returned 0\n"}) {
    EXPECT_THAT(result.output, HasSubstr(line));
  }
}

TEST(Launch, ARankOfALauncherRunsAtOnce) {
  for (const RankResult& result : run_rank_processes(2, "launch_sums")) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, ContainsRegex("rank [01]: 3\n")) << "a world of two, not of three";
  }
  const RankResult half = run_program("launch_sums", {{"RANK", "1"}});
  EXPECT_EQ(half.exit_code, 1);
  EXPECT_THAT(half.output, HasSubstr("WORLD_SIZE: not set, although RANK is"));
}

/// A text that is too long for a rank's note, which ends within a character of it.
std::string long_text() {
  std::string text = "data!";
  while (text.size() < 3000) text += "\u20ac";
  return text;
}

/// Ranks of which one does what TEST_MODE says, while the others wait for it.
const RankProcessBody kFails("launch_fails", [] {
  const std::string mode = env_of("TEST_MODE");
  return_from_main(launch_body("launch_fails", {.nproc = 3}, [&] {
    const bool is_it = env_of("RANK") == "1";
    if (is_it && mode == "usage") throw std::invalid_argument("--n: got 0");
    const auto world = join();
    if (is_it && mode == "throw") throw std::runtime_error("no data");
    if (is_it && mode == "escape") throw std::runtime_error("no \x1b[31mdata");
    if (is_it && mode == "bytes") throw std::runtime_error("no \xff\xc3 data");
    if (is_it && mode == "long") throw std::runtime_error("no " + long_text());
    if (is_it && mode == "return") return 7;
    if (is_it && mode == "kill") ::raise(SIGKILL);
    world->barrier();
    return 0;
  }));
});

TEST(Launch, TheRankThatFailedFirstIsNamed) {
  const auto run = [](const char* mode) {
    return run_program("launch_fails", {{"TEST_MODE", mode}});
  };
  const RankResult thrown = run("throw");
  EXPECT_EQ(thrown.exit_code, 1);
  EXPECT_THAT(thrown.output,
              ContainsRegex("failed: rank 1, code 1, signal 0: .launch. rank 1 .pid [0-9]+. exited "
                            "with code 1: .*no data"));
  EXPECT_THAT(thrown.output, ContainsRegex("(^|\n)no data\n")) << "by the rank itself";
  EXPECT_THAT(thrown.output, Not(HasSubstr("no data: no data"))) << "its error file has it, too";
  const RankResult returned = run("return");
  EXPECT_EQ(returned.exit_code, 7);
  EXPECT_THAT(returned.output, HasSubstr("failed: rank 1, code 7, signal 0: [launch] rank 1 (pid"));
  const RankResult killed = run("kill");
  EXPECT_EQ(killed.exit_code, 137);
  EXPECT_THAT(killed.output, HasSubstr("failed: rank 1, code 137, signal 9: [launch] rank 1 (pid"));
  EXPECT_THAT(killed.output, HasSubstr("died of signal 9 (SIGKILL)"));
  const RankResult refused = run("usage");
  EXPECT_EQ(refused.exit_code, 64);
  EXPECT_THAT(refused.output, HasSubstr("exited with code 64: --n: got 0"));
  EXPECT_EQ(run("").exit_code, 0) << "the control";
}

TEST(Launch, TheTextOfAnErrorIsToldOnce) {
  const auto told_in = [](const char* mode) {
    const std::string output = run_program("launch_fails", {{"TEST_MODE", mode}}).output;
    return output.substr(std::min(output.find("failed: rank 1"), output.size()));
  };
  EXPECT_THAT(told_in("escape"), EndsWith(" unwound: no ?[31mdata\n"));
  EXPECT_THAT(told_in("bytes"), EndsWith(" unwound: no \ufffd\ufffd data\n"));
  const std::string cut = told_in("long");
  EXPECT_THAT(cut, HasSubstr(" unwound: no data!\u20ac"));
  EXPECT_THAT(cut, EndsWith("\u20ac\n"));
  EXPECT_EQ(cut.find("data"), cut.rfind("data"));
}

/// A program of which rank 1 ends before launch(), or inside it.
const RankProcessBody kSkips("launch_skips", [] {
  const std::string mode = env_of("TEST_MODE");
  const std::string rank = env_of("RANK");
  const bool is_it = rank == "1" || (rank == "0" && mode == "all");
  if (is_it && mode != "inside") return_from_main(0);
  return_from_main(launch_body("launch_skips", {.nproc = 2}, [&] {
    if (is_it && mode == "inside") return_from_main(0);
    return 0;
  }));
});

TEST(Launch, ARankThatEndsBeforeItIsOneHasFailed) {
  for (const char* mode : {"one", "all"}) {
    const RankResult result = run_program("launch_skips", {{"TEST_MODE", mode}});
    EXPECT_FALSE(result.timed_out);
    EXPECT_EQ(result.exit_code, 1) << mode;
    EXPECT_THAT(result.output,
                ContainsRegex("failed: rank [01], code 1, signal 0: .launch. rank [01] .pid "
                              "[0-9]+. exited with code 0: it ended before it reached launch.."));
  }
  EXPECT_EQ(run_program("launch_skips", {{"TEST_MODE", "inside"}}).exit_code, 0) << "the control";
}

const RankProcessBody kDeaf("launch_deaf", [] {
  return_from_main(launch_body("launch_deaf", {.nproc = 2, .grace = {}}, [] {
    ::signal(SIGTERM, SIG_IGN);
    join()->barrier();
    if (env_of("RANK") == "0") throw std::runtime_error("no model");
    while (true) ::pause();
    return 0;
  }));
});

TEST(Launch, ARankThatDoesNotEndIsKilled) {
  const RankResult result = run_program("launch_deaf");
  EXPECT_FALSE(result.timed_out);
  EXPECT_THAT(result.output, ContainsRegex("failed: rank 0, code 1, .*no model"));
}

const RankProcessBody kWaits("launch_waits", [] {
  return_from_main(
      launch_body("launch_waits", {.nproc = 3, .grace = std::chrono::milliseconds::max()}, [] {
        const StopRequest stop;
        say(absl::StrCat("rank ", env_of("RANK"), " waits as ", ::getpid(), "."));
        while (!stop.is_requested()) std::this_thread::yield();
        say("saved");
        return 0;
      }));
});

bool all_wait(RankProcesses& program) {
  return program.wait_for_output(0, "rank 0 waits") && program.wait_for_output(0, "rank 1 waits") &&
         program.wait_for_output(0, "rank 2 waits");
}

/// How often `text` is in `output`, and the numbers behind it.
std::vector<int> numbers_behind(const std::string& text, const std::string& output) {
  std::vector<int> numbers;
  for (size_t at = output.find(text); at != output.npos; at = output.find(text, at + 1)) {
    numbers.push_back(std::atoi(output.c_str() + at + text.size()));
  }
  return numbers;
}

TEST(Launch, ASignalReachesTheRanks) {
  for (const int signal : {SIGTERM, SIGINT}) {
    RankProcesses program(1, "launch_waits", program_options());
    ASSERT_TRUE(all_wait(program));
    program.kill(0, signal);
    const RankResult result = program.wait()[0];
    EXPECT_EQ(result.exit_code, 128 + signal) << result.output;
    // SIGINT is not one that these ranks wait for: it ends them.
    EXPECT_EQ(numbers_behind("saved", result.output).size(), signal == SIGTERM ? 3 : 0);
    EXPECT_THAT(result.output, Not(HasSubstr("failed")));
  }
}

template <typename Condition>
bool comes_true(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  return condition();
}

bool is_gone(int pid) {
  const auto status = process_status(pid);
  return !status || status->has_ended();
}

TEST(Launch, NothingOutlivesTheProgramThatLaunches) {
  const TemporaryDirectory place;
  RankProcesses program(1, "launch_waits", program_options({{"TMPDIR", place.path()}}));
  ASSERT_TRUE(all_wait(program));
  EXPECT_FALSE(place.is_empty()) << "the control: where the ranks meet";
  program.kill(0, SIGKILL);
  const RankResult result = program.wait()[0];  // to the end of an output that ranks write to
  EXPECT_FALSE(result.timed_out);
  const std::vector<int> pids = numbers_behind("waits as ", result.output);
  ASSERT_EQ(pids.size(), 3);
  for (const int pid : pids) EXPECT_TRUE(comes_true([&] { return is_gone(pid); })) << pid;
  EXPECT_TRUE(comes_true([&] { return place.is_empty(); })) << "the watcher clears up";
}

/// Makes a terminal this process's own, on which a process that is not in the foreground may not
/// write, and makes it stdout. Returns the other end of it.
FileDescriptor open_terminal() {
  ::setsid();
  FileDescriptor other(::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
  ::grantpt(other.get());
  ::unlockpt(other.get());
  const FileDescriptor terminal(::open(::ptsname(other.get()), O_RDWR | O_CLOEXEC));
  termios settings = {};
  bool is_ready = ::tcgetattr(terminal.get(), &settings) == 0;
  settings.c_lflag |= TOSTOP;
  is_ready = is_ready && ::tcsetattr(terminal.get(), TCSANOW, &settings) == 0 &&
             ::tcgetpgrp(terminal.get()) == ::getpgrp() &&
             ::dup2(terminal.get(), STDOUT_FILENO) == STDOUT_FILENO;
  if (!is_ready) throw std::runtime_error("got no terminal of its own");
  return other;
}

const RankProcessBody kOnTerminal("launch_on_terminal", [] {
  const auto launch_two = [] {
    return launch_body("launch_on_terminal", {.nproc = 2}, [] {
      say(absl::StrCat("rank ", env_of("RANK"), " writes"));
      return 0;
    });
  };
  if (env_of("RANK") != "none") return_from_main(launch_two());
  const FileDescriptor other = open_terminal();
  const int code = launch_two();
  std::array<char, 4096> shown;
  for (ssize_t count; (count = ::read(other.get(), shown.data(), shown.size())) > 0;) {
    std::fwrite(shown.data(), 1, static_cast<size_t>(count), stderr);
  }
  return_from_main(code);
});

TEST(Launch, OutputToATerminalStopsNoRank) {
  const RankResult result = run_program("launch_on_terminal");
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("rank 0 writes"));
  EXPECT_THAT(result.output, HasSubstr("rank 1 writes"));
}

const RankProcessBody kNested("launch_nested", [] {
  return_from_main(launch_body("launch_nested", {.nproc = 2}, [] {
    if (env_of("TEST_MODE") == "call") {
      return launch_body("launch_nested", {.nproc = 2}, [] { return 0; });
    }
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    return std::system(absl::StrCat(program, " --rank_body=launch_nested").c_str()) == 0 ? 0 : 9;
  }));
});

TEST(Launch, ARankLaunchesNoRanks) {
  const RankResult call = run_program("launch_nested", {{"TEST_MODE", "call"}});
  EXPECT_EQ(call.exit_code, 1);
  EXPECT_THAT(call.output,
              ContainsRegex("failed: rank [01], code 1.* got a second call of launch.."));
  const RankResult program = run_program("launch_nested");
  EXPECT_EQ(program.exit_code, 9);
  EXPECT_THAT(program.output, HasSubstr("a rank of launch() has started this program"));
}

const RankProcessBody kShows("launch_shows", [] {
  std::filesystem::current_path("/");
  return_from_main(launch_body("launch_shows", {.nproc = 1},
                               [] {
                                 const std::string arguments = content_of("/proc/self/cmdline");
                                 say(absl::StrReplaceAll(arguments, {{std::string(1, '\0'), "|"}}));
                                 say(absl::StrCat("called ", content_of("/proc/self/comm")));
                                 char byte;
                                 say(absl::StrCat("stdin: ", ::read(STDIN_FILENO, &byte, 1)));
                                 return 0;
                               },
                               {"two words", "", "--x=$HOME\n", "\xc3\xbc"}));
});

TEST(Launch, ArgumentsArriveAsTheyAre) {
  const RankResult result = run_program("launch_shows");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output,
              HasSubstr("./core_test|--rank_body=launch_shows|two words||--x=$HOME\n|\xc3\xbc|\n"))
      << "of a program that is not at this path";
  EXPECT_THAT(result.output, HasSubstr("called core_test\n"));
  EXPECT_THAT(result.output, HasSubstr("stdin: 0\n"));
}

const RankProcessBody kVariables("launch_variables", [] {
  return_from_main(launch_body("launch_variables", {.nproc = 3}, [] {
    std::vector<std::string> values;
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "OMP_NUM_THREADS",
          "TEST_OWN", "MASTER_ADDR", "TESSERA_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"}) {
      values.push_back(env_of(name));
    }
    say(absl::StrJoin(values, " "));
    return 0;
  }));
});

TEST(Launch, ARankHasTheVariablesOfTesseraRun) {
  const RankResult result =
      run_program("launch_variables", {{"TEST_OWN", "own"}, {"MASTER_ADDR", "left.over"}});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_THAT(result.output, HasSubstr(absl::StrCat(rank, " 3 ", rank, " 3 0 1 own none 0 0\n")));
  }
}

const RankProcessBody kExplains("launch_explains", [] {
  return_from_main(launch_body("launch_explains", {.nproc = 2}, [] {
    if (env_of("RANK") == "0") return 0;
    const std::string path = env_of("TORCHELASTIC_ERROR_FILE");
    say(absl::StrCat("explains in ", path));
    std::ofstream(path) << "{\"message\": \"bad batch\", \"timestamp\": 1}";
    return 3;
  }));
});

TEST(Launch, TheErrorFileOfARankIsRead) {
  const TemporaryDirectory place;
  const RankResult result =
      run_program("launch_explains",
                  {{"TMPDIR", place.path()}, {"TORCHELASTIC_ERROR_FILE", place.path() + "/outer"}});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.output, HasSubstr("explains in " + place.path() + "/tessera-run-"));
  EXPECT_THAT(result.output, HasSubstr("exited with code 3: bad batch\n"));
  EXPECT_TRUE(place.is_empty()) << "what the launching process has is not for its ranks";
}

int64_t count_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

const RankProcessBody kLeavesNothing("launch_leaves_nothing", [] {
  struct sigaction handler = {}, after = {};
  handler.sa_handler = [](int) {};
  ::sigaction(SIGTERM, &handler, nullptr);
  ::signal(SIGCHLD, SIG_IGN);
  const int64_t before = count_descriptors();
  for (const int expected : {0, 5}) {  // a program that launches again after a failure
    const int code = launch_body("launch_leaves_nothing", {.nproc = 2}, [] {
      return content_of(env_of("TMPDIR") + "/fail").empty() ? 0 : 5;
    });
    if (env_of("RANK") != "none") return_from_main(code);
    say(absl::StrCat("expected ", expected, ", got ", code));
    std::ofstream(env_of("TMPDIR") + "/fail") << "yes";
  }
  say(absl::StrCat("descriptors left: ", count_descriptors() - before));
  const bool has_children = ::waitpid(-1, nullptr, WNOHANG) >= 0 || errno != ECHILD;
  say(absl::StrCat("children left: ", has_children ? "some" : "none"));
  ::sigaction(SIGTERM, nullptr, &after);
  say(after.sa_handler == handler.sa_handler ? "own handler" : "another handler");
  ::sigaction(SIGCHLD, nullptr, &after);
  say(after.sa_handler == SIG_IGN ? "still ignored" : "not ignored");
  return_from_main(0);
});

TEST(Launch, NothingIsLeftBehind) {
  const TemporaryDirectory place;
  const RankResult result = run_program("launch_leaves_nothing", {{"TMPDIR", place.path()}});
  for (const char* line : {"expected 0, got 0\n", "expected 5, got 5\n", "descriptors left: 0\n",
                           "children left: none\n", "own handler\n", "still ignored\n"}) {
    EXPECT_THAT(result.output, HasSubstr(line));
  }
  EXPECT_THAT(names_in(place.path()), ::testing::ElementsAre("fail"));
}

TEST(Launch, WhatCannotBeIsRefused) {
  const auto refusal = [](int argc, const LaunchOptions& options) {
    char name[] = "program";
    char* argv[] = {name, nullptr};
    return message_of([&] { launch(argc, argv, options, [] { return 0; }); });
  };
  EXPECT_THAT(refusal(1, {.nproc = 0}), HasSubstr("[launch] nproc: got 0, expected 1 to 4096"));
  EXPECT_THAT(refusal(1, {.nproc = 4097}), HasSubstr("[launch] nproc: got 4097"));
  EXPECT_THAT(refusal(1, {.grace = std::chrono::milliseconds(-1)}), HasSubstr("[launch] grace"));
  EXPECT_THAT(refusal(0, {.nproc = 2}), HasSubstr("[launch] argc, argv: got 0 arguments"));
}

}  // namespace
}  // namespace tessera::internal::testing
