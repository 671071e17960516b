// Ranks that are processes and meet in every kind of place, and their errors when they cannot.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/meeting/listener.h"
#include "tessera/core/comm/meeting/tcp_address.h"
#include "tessera/core/comm/meeting/unix_place.h"
#include "tessera/process_group.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using testing::free_port;
using ::testing::HasSubstr;
using testing::join;
using ::testing::Not;
using testing::RankProcessBody;
using testing::RankProcesses;
using testing::RankProcessOptions;
using testing::RankResult;
using testing::run_rank_processes;
using testing::say;
using testing::TemporaryDirectory;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

const RankProcessBody kMeet("meet_again_and_again", [] {
  const std::string worlds = variable("TEST_WORLDS");
  for (int i = 0; i < (worlds.empty() ? 1 : std::stoi(worlds)); ++i) {
    const auto world = join();
    at::Tensor one = at::ones({1});
    world->all_reduce(one, ReduceOp::kSum)->wait();
    if (one.item<float>() != static_cast<float>(world->size())) throw std::runtime_error("sum");
  }
  say("met");
});

/// TEST_FAILS names the rank whose files may not exceed 8 KiB: it cannot make shared memory, and
/// gets an error rather than a signal.
const RankProcessBody kPoor("meet_without_memory", [] {
  if (variable("TEST_FAILS") == variable("RANK")) {
    const rlimit limit{8192, 8192};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::signal(SIGXFSZ, SIG_IGN);
  }
  join();
  say("met");
});

RankProcessOptions at_port(int port) {
  RankProcessOptions options;
  options.environment = {
      {"TESSERA_STORE", ""}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", absl::StrCat(port)}};
  return options;
}

std::string url_in(const TemporaryDirectory& directory) {
  return absl::StrCat("file://", directory.path(), "/store");
}

void expect_all(const std::vector<RankResult>& results, int code, const std::string& text) {
  for (const RankResult& result : results) {
    EXPECT_FALSE(result.timed_out) << result.output;
    EXPECT_EQ(result.exit_code, code) << result.output;
    EXPECT_THAT(result.output, HasSubstr(text));
  }
}

/// Runs one rank of two, with these variables.
RankResult alone(RankProcessOptions options, int rank, const std::string& timeout_ms = "1000") {
  options.environment["WORLD_SIZE"] = options.environment["LOCAL_WORLD_SIZE"] = "2";
  options.environment["RANK"] = options.environment["LOCAL_RANK"] = absl::StrCat(rank);
  options.environment["TEST_TIMEOUT_MS"] = timeout_ms;
  return run_rank_processes(1, "meet_again_and_again", options)[0];
}

TEST(Places, ManyWorldsMeetInOnePlace) {
  RankProcessOptions at_path;
  at_path.environment = {{"TEST_WORLDS", "50"}};
  expect_all(run_rank_processes(3, "meet_again_and_again", at_path), 0, "met");
  RankProcessOptions at_address = at_port(free_port());
  at_address.environment["TEST_WORLDS"] = "50";
  expect_all(run_rank_processes(3, "meet_again_and_again", at_address), 0, "met");
}

TEST(Places, AFailureOfTheHostIsToldToAll) {
  RankProcessOptions options = at_port(free_port());
  options.environment["TEST_FAILS"] = "0";
  const auto results = run_rank_processes(3, "meet_without_memory", options);
  expect_all(results, 1, "File too large; raise ulimit -f");
  EXPECT_THAT(results[2].output, HasSubstr("rank 0 failed: "));
}

TEST(Places, ADeadHostIsNamedByWhoIsThere) {
  for (const bool at_path : {true, false}) {
    RankProcessOptions options = at_path ? RankProcessOptions() : at_port(free_port());
    options.environment["WORLD_SIZE"] = options.environment["LOCAL_WORLD_SIZE"] = "3";
    const TemporaryDirectory directory;
    if (at_path) options.environment["TESSERA_STORE"] = url_in(directory);
    options.environment["RANK"] = options.environment["LOCAL_RANK"] = "0";
    RankProcesses host(1, "meet_again_and_again", options);
    while (at_path && !std::filesystem::exists(directory.path() + "/store")) {
      std::this_thread::yield();
    }
    options.environment["RANK"] = options.environment["LOCAL_RANK"] = "1";
    RankProcesses member(1, "meet_again_and_again", options);
    // Rank 1 has come.
    ASSERT_TRUE(host.wait_for_output(0, "[rendezvous] rank 2 has not come yet"));
    host.kill(0);
    host.wait();
    const RankResult result = member.wait()[0];
    EXPECT_FALSE(result.timed_out);
    EXPECT_THAT(result.output, HasSubstr(absl::StrCat("rank 0 (pid ", host.pid(0), ")")));
  }
}

TEST(Places, EachThingThatIsNotThereHasATextOfItsOwn) {
  // A closed port is in Processes.AClosedPortIsATimeOutWithItsAddress.
  RankProcessOptions unknown = at_port(29500);
  unknown.environment["MASTER_ADDR"] = "no-such-host.invalid";
  unknown.environment["TESSERA_JOB_TOKEN"] = "secret";
  EXPECT_THAT(
      alone(unknown, 0).output,
      HasSubstr("MASTER_ADDR and MASTER_PORT: got no-such-host.invalid:29500, which is unknown"));
  EXPECT_THAT(alone(unknown, 1).output, HasSubstr("the host is unknown"));

  const auto silent = TcpAddress::resolve({"127.0.0.1"}, 0)->listen().value();
  EXPECT_THAT(alone(at_port(endpoint_of(*silent).port), 1).output, HasSubstr("does not answer"));
}

RankProcessOptions at_url(const std::string& url) {
  RankProcessOptions options;
  options.environment = {{"TESSERA_STORE", url}};
  return options;
}

TEST(Places, AUrlNamesAnAddress) {
  expect_all(run_rank_processes(3, "meet_again_and_again",
                                at_url(absl::StrCat("tcp://127.0.0.1:", free_port()))),
             0, "met");
}

TEST(Places, Case24AUrlThatLeadsNowhereIsNamed) {
  RankProcessOptions unknown = at_url("tcp://no-such-host.invalid:29500");
  EXPECT_THAT(alone(unknown, 0).output,
              HasSubstr("TESSERA_STORE: got no-such-host.invalid:29500, which is unknown"));
  EXPECT_THAT(alone(unknown, 1).output, HasSubstr("TESSERA_STORE no-such-host.invalid:29500: "
                                                  "the host is unknown"));
  // 192.0.2.1 belongs to nobody (RFC 5737).
  RankProcessOptions foreign = at_url("tcp://192.0.2.1:29500");
  EXPECT_THAT(alone(foreign, 0).output, HasSubstr("TESSERA_JOB_TOKEN: not set, although"));
  foreign.environment["TESSERA_JOB_TOKEN"] = "secret";
  EXPECT_THAT(alone(foreign, 0).output,
              HasSubstr("TESSERA_STORE: got 192.0.2.1:29500, which rank 0 cannot listen at"));
  const std::string url = absl::StrCat("tcp://127.0.0.1:", free_port());
  EXPECT_THAT(alone(at_url(url), 1).output,
              AllOf(HasSubstr("nobody listens"), HasSubstr("is rank 0 there?")));
}

TEST(Places, Case32WithoutATokenNobodyMeetsWhereOthersReach) {
  RankProcessOptions options = at_port(29500);
  options.environment["MASTER_ADDR"] = "192.0.2.1";  // belongs to nobody (RFC 5737)
  for (const int rank : {0, 1}) {
    EXPECT_THAT(alone(options, rank).output,
                HasSubstr("[rendezvous] TESSERA_JOB_TOKEN: not set, although the ranks meet at "
                          "192.0.2.1:29500"));
  }
  options.environment["TESSERA_JOB_TOKEN"] = "secret";
  EXPECT_THAT(alone(options, 0).output,
              HasSubstr("192.0.2.1:29500, which rank 0 cannot listen at"));
}

TEST(Places, Case32RanksWithAnotherTokenAreStrangersAtAnAddress) {
  const int port = free_port();
  RankProcessOptions options = at_port(port);
  options.environment["WORLD_SIZE"] = options.environment["LOCAL_WORLD_SIZE"] = "2";
  options.environment["TESSERA_JOB_TOKEN"] = "ours";
  RankProcesses host(1, "meet_again_and_again", options);
  const auto address = TcpAddress::resolve({"127.0.0.1"}, port).value();
  while (!address.connect(Deadline::max()).ok()) std::this_thread::yield();
  options.environment["TESSERA_JOB_TOKEN"] = "theirs";
  EXPECT_THAT(alone(options, 1).output, HasSubstr("has another TESSERA_JOB_TOKEN, or"));
  options.environment["TESSERA_JOB_TOKEN"] = "ours";
  // The host ignored the stranger.
  EXPECT_THAT(alone(options, 1, "50000").output, HasSubstr("met"));
  EXPECT_EQ(host.wait()[0].exit_code, 0);
}

TEST(Places, Case32StrangersAreCountedWhereARankIsMissing) {
  const int port = free_port();
  RankProcessOptions options = at_port(port);
  options.environment["WORLD_SIZE"] = options.environment["LOCAL_WORLD_SIZE"] = "2";
  options.environment["TESSERA_JOB_TOKEN"] = "ours";
  // By then the stranger, a new process, must have come; under a sanitizer that takes seconds.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  options.environment["TEST_TIMEOUT_MS"] = "20000";
#else
  options.environment["TEST_TIMEOUT_MS"] = "6000";
#endif
  RankProcesses host(1, "meet_again_and_again", options);
  const auto address = TcpAddress::resolve({"127.0.0.1"}, port).value();
  while (!address.connect(Deadline::max()).ok()) std::this_thread::yield();
  options.environment["TESSERA_JOB_TOKEN"] = "theirs";
  alone(options, 1);
  EXPECT_THAT(host.wait()[0].output,
              AllOf(HasSubstr("rank 1 did not come to MASTER_ADDR and MASTER_PORT 127.0.0.1:"),
                    HasSubstr("did not prove to belong to this job: give "
                              "all ranks the same TESSERA_JOB_TOKEN")));
}

TEST(Places, TwoRankZerosAtOneAddressHearOfEachOther) {
  RankProcessOptions options = at_port(free_port());
  options.environment["RANK"] = options.environment["LOCAL_RANK"] = "0";  // no rank is rank 1
  expect_all(run_rank_processes(2, "meet_again_and_again", options), 1, "RANK 0 was given twice");
}

TEST(Places, AStoppedHostIsNamedAsStopped) {
  const TemporaryDirectory directory;
  RankProcessOptions options;
  options.environment["TESSERA_STORE"] = url_in(directory);
  options.environment["WORLD_SIZE"] = options.environment["LOCAL_WORLD_SIZE"] = "2";
  RankProcesses host(1, "meet_again_and_again", options);
  // The socket's file appears before the process listens.
  UnixPlace place(directory.path() + "/store");
  while (!place.connect(Deadline::max()).ok()) std::this_thread::yield();
  host.kill(0, SIGSTOP);
  const RankResult result = alone(options, 1);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, AllOf(HasSubstr(absl::StrCat("pid ", host.pid(0))),
                                   HasSubstr("is stopped (SIGSTOP or a debugger)"),
                                   Not(HasSubstr("is rank 0 there?"))));
  host.kill(0);
  host.wait();
}

TEST(Places, ATruncatedOrForeignFileIsAnError) {
  const TemporaryDirectory directory;
  std::ofstream(directory.path() + "/store") << std::string(1000, '\xff');
  RankProcessOptions options;
  options.environment["TESSERA_STORE"] = url_in(directory);
  EXPECT_THAT(
      alone(options, 0).output,
      AllOf(HasSubstr(directory.path()), HasSubstr("not a socket"), Not(HasSubstr("timed out"))));
}

}  // namespace
}  // namespace tessera::internal
