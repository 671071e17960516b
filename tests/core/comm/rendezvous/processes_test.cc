// Ranks that are processes: the same collectives, and the faults that only processes have.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/process_group.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/support/rank_processes.h"

namespace tessera::internal {
namespace {

using testing::free_port;
using ::testing::HasSubstr;
using testing::join;
using testing::RankProcessBody;
using testing::RankProcesses;
using testing::RankProcessOptions;
using testing::run_rank_processes;
using testing::say;

// ---- what the ranks do
// -------------------------------------------------------------------------------------------

const RankProcessBody kSums("sums", [] {
  auto world = join();
  const int size = world->size();
  auto other = duplicate(*world, "other");
  for (const int64_t numel : {1, 1000, 300001}) {
    for (const bool arena : {true, false}) {
      at::Tensor tensor =
          arena ? world->allocate(numel, at::kFloat) : at::empty({numel}, at::kFloat);
      tensor.fill_(world->rank() + 1);
      (arena ? world : other)->all_reduce(tensor, ReduceOp::kSum, "sum")->wait();
      if (!at::equal(tensor, at::full({numel}, size * (size + 1) / 2.0, at::kFloat))) {
        throw std::runtime_error("wrong sum");
      }
    }
  }
  say("done");
});

/// Prints to closed streams while shared memory is made and used.
const RankProcessBody kClosedStreams("sums_with_closed_streams", [] {
  for (const int fd : {0, 1, 2}) ::close(fd);
  auto world = join();
  const auto print = [] {
    std::printf("%s\n", std::string(5000, 'x').c_str());
    std::fprintf(stderr, "%s\n", std::string(5000, 'x').c_str());
    std::fflush(stdout);
  };
  const auto sum = [&] {
    at::Tensor tensor = world->allocate(1000, at::kFloat);
    tensor.fill_(world->rank() + 1);
    print();
    world->barrier();
    world->all_reduce(tensor, ReduceOp::kSum, "sum")->wait();
    const int size = world->size();
    if (!at::equal(tensor, at::full({1000}, size * (size + 1) / 2.0, at::kFloat))) ::_exit(3);
  };
  sum();
  for (const int fd : {0, 1, 2}) ::close(fd);
  auto other = duplicate(*world, "made while streams are closed");
  sum();
  ::_exit(::fcntl(1, F_GETFD) < 0 ? 0 : 4);
});

const RankProcessBody kStops("rank_1_waits_outside", [] {
  auto world = join();
  world->barrier();
  say("ready");
  if (world->rank() == 1) ::pause();
  world->all_reduce(at::zeros({100}), ReduceOp::kSum, "bucket")->wait();
});

const RankProcessBody kLoops("loops", [] {
  auto world = join();
  at::Tensor tensor = world->allocate(100000, at::kFloat);
  at::Tensor staged = at::zeros({200000});
  tensor.zero_();
  for (int i = 0;; ++i) {
    world->all_reduce(tensor, ReduceOp::kSum, "bucket")->wait();
    world->all_reduce(staged, ReduceOp::kSum, "staged")->wait();
    if (i == 10) say("looping");
  }
});

const RankProcessBody kEnds("rank_1_ends", [] {
  auto world = join();
  if (world->rank() == 1) ::_exit(0);
  world->barrier("without rank 1");
});

const RankProcessBody kThrows("rank_1_throws", [] {
  auto world = join();
  if (world->rank() == 1) throw std::runtime_error("bad batch");
  world->barrier("without rank 1");
});

const RankProcessBody kAgent("agent_or_sums", [] {
  if (std::getenv("TEST_AGENT") == nullptr) {
    auto world = join();
    at::Tensor one = at::ones({1});
    world->all_reduce(one, ReduceOp::kSum)->wait();
    say(absl::StrCat("sum ", one.item<float>()));
    return;
  }
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT")));
  options.isServer = true;
  options.waitWorkers = false;
  c10d::TCPStore store("127.0.0.1", options);
  say("hosting");
  ::pause();
});

// ---- helpers
// -----------------------------------------------------------------------------------------------------

/// A socket that listens on a free port of the loopback device and never answers.
class SilentListener {
 public:
  SilentListener() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    ::listen(fd_, 8);
    socklen_t length = sizeof(address);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
  }
  ~SilentListener() { ::close(fd_); }
  int port() const { return port_; }

 private:
  int fd_;
  int port_ = 0;
};

RankProcessOptions with_master(int port) {
  RankProcessOptions options;
  options.environment = {
      {"TESSERA_STORE", ""}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", absl::StrCat(port)}};
  return options;
}

/// Expects that all ranks except `culprit` end with code 1 and `text`.
void expect_failure(const std::vector<testing::RankResult>& results, int culprit,
                    const std::string& text) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_FALSE(results[rank].timed_out) << "rank " << rank << " hung";
    if (static_cast<int>(rank) == culprit) continue;
    EXPECT_EQ(results[rank].exit_code, 1) << "rank " << rank;
    EXPECT_THAT(results[rank].output, HasSubstr(text)) << "rank " << rank;
  }
}

void expect_success(const std::vector<testing::RankResult>& results) {
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.output;
}

// ---- tests
// -------------------------------------------------------------------------------------------------------

TEST(Processes, ReduceHavingMetAtAPath) {
  for (const int size : {1, 2, 3}) expect_success(run_rank_processes(size, "sums"));
}

TEST(Processes, ReduceHavingMetAtAnAddress) {
  expect_success(run_rank_processes(3, "sums", with_master(free_port())));
}

TEST(Processes, WhatIsPrintedIntoClosedStreamsGoesNowhere) {
  expect_success(run_rank_processes(3, "sums_with_closed_streams"));
}

TEST(Processes, AKilledRankIsNamedByAllThatWaitForIt) {
  RankProcesses ranks(3, "rank_1_waits_outside");
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(ranks.wait_for_output(rank, "ready"));
  ranks.kill(1);
  const auto results = ranks.wait();
  expect_failure(results, 1, absl::StrCat("rank 1 (pid ", ranks.pid(1), ") died"));
  EXPECT_EQ(results[1].exit_code, 128 + SIGKILL);
}

TEST(Processes, ARankKilledInTheMiddleOfCollectivesIsNamed) {
  for (int culprit = 0; culprit < 3; ++culprit) {
    RankProcesses ranks(3, "loops");
    for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(ranks.wait_for_output(rank, "looping"));
    ranks.kill(culprit);
    const auto results = ranks.wait();
    expect_failure(results, culprit,
                   absl::StrCat("rank ", culprit, " (pid ", ranks.pid(culprit), ") died"));
  }
}

TEST(Processes, ARankThatEndsWithoutLeavingDied) {
  RankProcesses ranks(3, "rank_1_ends");
  expect_failure(ranks.wait(), 1, absl::StrCat("rank 1 (pid ", ranks.pid(1), ") died"));
}

TEST(Processes, AnExceptionInOneRankIsNamedByTheOthers) {
  RankProcesses ranks(3, "rank_1_throws");
  const auto results = ranks.wait();
  expect_failure(results, 1, "rank 1 left while an exception unwound");
  EXPECT_THAT(results[1].output, HasSubstr("bad batch"));
}

TEST(Processes, AStoppedRankIsATimeOutWithItsName) {
  RankProcessOptions options;
  options.environment = {{"TEST_TIMEOUT_MS", "3000"}};
  RankProcesses ranks(2, "loops", options);
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(ranks.wait_for_output(rank, "looping"));
  ranks.kill(1, SIGSTOP);
  ASSERT_TRUE(ranks.wait_for_output(0, "timed out: rank 0 waited 3000 ms for rank 1 (pid "));
  ranks.kill(1);
  EXPECT_EQ(ranks.wait()[0].exit_code, 1);
}

TEST(Processes, ABadVariableIsNamedAtOnce) {
  RankProcessOptions options;
  options.environment = {{"RANK", "1x"}, {"LOCAL_RANK", ""}};
  const auto results = run_rank_processes(1, "sums", options);
  expect_failure(results, -1, "[environment] RANK: got '1x', expected an integer");
  EXPECT_THAT(results[0].output, HasSubstr("[environment] LOCAL_RANK: not set, although"));
}

TEST(Processes, ARankGivenTwiceIsNamedByAll) {
  RankProcessOptions options;
  options.environment_of_rank[2] = {{"RANK", "1"}, {"LOCAL_RANK", "1"}};
  RankProcesses ranks(3, "sums", options);
  const std::pair<int, int> pids = std::minmax({ranks.pid(1), ranks.pid(2)});
  const auto results = ranks.wait();
  expect_failure(
      results, -1,
      absl::StrCat("RANK 1 was given twice, to pid ", pids.first, " and to pid ", pids.second));
}

TEST(Processes, WorldSizesThatDifferAreNamedByAll) {
  RankProcessOptions options;
  options.environment_of_rank[1] = {{"WORLD_SIZE", "3"}, {"LOCAL_WORLD_SIZE", "3"}};
  const auto results = run_rank_processes(2, "sums", options);
  expect_failure(results, -1, "rank 1 has WORLD_SIZE 3 where rank 0 has 2");
}

TEST(Processes, Case32AnotherJobsTokenIsNamedByAll) {
  RankProcessOptions options;
  options.environment = {{"TESSERA_JOB_TOKEN", "ours"}};
  expect_success(run_rank_processes(2, "sums", options));
  options.environment["TEST_TIMEOUT_MS"] = "5000";  // by then both must have started
  options.environment_of_rank[1] = {{"TESSERA_JOB_TOKEN", "theirs"}};
  const auto results = run_rank_processes(2, "sums", options);
  expect_failure(results, 1, "give all ranks the same TESSERA_JOB_TOKEN");
  expect_failure(results, 0, "has another TESSERA_JOB_TOKEN");
}

TEST(Processes, Case29AMissingRankIsNamedAtTheTimeOut) {
  const std::string limit = "5000";  // by then both must have started
  RankProcessOptions options;
  options.environment = {
      {"WORLD_SIZE", "3"}, {"LOCAL_WORLD_SIZE", "3"}, {"TEST_TIMEOUT_MS", limit}};
  expect_failure(run_rank_processes(2, "sums", options), -1,
                 absl::StrCat("timed out after ", limit, " ms: rank 2 did not come"));
}

TEST(Processes, ADeadProcesssSocketIsReplaced) {
  char directory[] = "/tmp/tessera-stale-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  const std::string path = absl::StrCat(directory, "/store");
  RankProcessOptions options;
  options.environment = {{"TESSERA_STORE", absl::StrCat("file://", path)}};
  {  // an attempt that was never completed
    RankProcessOptions broken = options;
    broken.environment_of_rank[0] = {{"WORLD_SIZE", "3"}, {"LOCAL_WORLD_SIZE", "3"}};
    RankProcesses rank(1, "sums", broken);
    while (!std::filesystem::exists(path)) {
      siginfo_t end = {};
      ::waitid(P_PID, rank.pid(0), &end, WEXITED | WNOHANG | WNOWAIT);
      ASSERT_EQ(end.si_pid, 0) << "ended before it listened";
      std::this_thread::yield();
    }
    rank.kill(0);
    rank.wait();
  }
  EXPECT_TRUE(std::filesystem::is_socket(path));
  expect_success(run_rank_processes(2, "sums", options));
  EXPECT_FALSE(std::filesystem::exists(path));  // a completed one leaves nothing behind
  expect_success(run_rank_processes(2, "sums", options));
  std::filesystem::remove_all(directory);
}

TEST(Processes, APortInUseIsNamedByRankZeroAndHangsNobody) {
  const SilentListener listener;
  RankProcessOptions options = with_master(listener.port());
  options.environment["TEST_TIMEOUT_MS"] = "2000";
  const auto results = run_rank_processes(2, "sums", options);
  EXPECT_EQ(results[0].exit_code, 1);
  EXPECT_THAT(results[0].output,
              HasSubstr(absl::StrCat("[rendezvous] MASTER_ADDR and MASTER_PORT: got 127.0.0.1:",
                                     listener.port(), ", which another program uses")));
  EXPECT_FALSE(results[1].timed_out);
  EXPECT_EQ(results[1].exit_code, 1) << results[1].output;
  EXPECT_THAT(results[1].output,
              HasSubstr(absl::StrCat("MASTER_PORT 127.0.0.1:", listener.port())));
}

TEST(Processes, AClosedPortIsATimeOutWithItsAddress) {
  const int port = free_port();
  RankProcessOptions options = with_master(port);
  options.environment["TEST_TIMEOUT_MS"] = "1500";
  options.environment["WORLD_SIZE"] = options.environment["LOCAL_WORLD_SIZE"] = "2";
  options.environment["RANK"] = options.environment["LOCAL_RANK"] = "1";
  expect_failure(run_rank_processes(1, "sums", options), -1,
                 absl::StrCat("timed out after 1500 ms: MASTER_ADDR and MASTER_PORT 127.0.0.1:",
                              port, ": nobody listens at 127.0.0.1:", port));
}

TEST(Processes, TheAgentsStoreIsNotHostedAgain) {
  RankProcessOptions options = with_master(free_port());
  options.environment["WORLD_SIZE"] = options.environment["LOCAL_WORLD_SIZE"] = "2";
  options.environment["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  options.environment_of_rank[2] = {{"TEST_AGENT", "1"}};
  RankProcesses ranks(3, "agent_or_sums", options);
  EXPECT_TRUE(ranks.wait_for_output(0, "sum 2"));
  EXPECT_TRUE(ranks.wait_for_output(1, "sum 2"));
  ranks.kill(2);
  const auto results = ranks.wait();
  EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
  EXPECT_EQ(results[1].exit_code, 0) << results[1].output;
}

/// The local address of the process that listens on this port, as /proc/net/tcp writes it, or "".
std::string listening_address(int port) {
  std::ifstream table("/proc/net/tcp");
  std::string line;
  const std::string suffix = absl::StrFormat(":%04X", port);
  while (std::getline(table, line)) {
    const size_t local = line.find(": ") + 2;
    const bool listens = line.find(" 0A ") != std::string::npos;
    if (listens && line.compare(local + 8, 5, suffix) == 0) return line.substr(local, 8);
  }
  return "";
}

TEST(Processes, RankZeroListensOnlyAtTheMastersAddress) {
  const int port = free_port();
  RankProcessOptions options = with_master(port);
  options.environment["WORLD_SIZE"] = options.environment["LOCAL_WORLD_SIZE"] = "2";
  RankProcesses rank(1, "sums", options);
  std::string address;
  const auto start = std::chrono::steady_clock::now();
  while (address.empty() && std::chrono::steady_clock::now() - start < std::chrono::seconds(20)) {
    address = listening_address(port);
  }
  EXPECT_EQ(address, "0100007F");
  rank.kill(0);
  rank.wait();
}

}  // namespace
}  // namespace tessera::internal
