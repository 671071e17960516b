// The record of the ranks' calls, the file that is written when they fail, and reports of long
// waits.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/flight_recorder/flight_recorder.h"
#include "tessera/process_group.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/support/warnings_of_ranks.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryDirectory;

CallSignature sum_of(int64_t numel) {
  return {.op = Op::kAllReduce, .dtype = at::kFloat, .numel = numel};
}

TEST(FlightRing, KeepsTheLastCallsAndWhenTheyWereOver) {
  const auto ring = std::make_unique<FlightRing>();
  EXPECT_TRUE(ring->last().empty());
  const uint64_t first = ring->begin(sum_of(3), 0, "grads", "world");
  EXPECT_EQ(ring->last()[0].end_ns, 0);
  ring->end(first);
  const FlightRecord record = ring->last()[0];
  EXPECT_EQ(record.text(), "#0 all_reduce SUM float32[3] 'grads' on group 'world'");
  EXPECT_GE(record.end_ns, record.begin_ns);
  for (uint64_t i = 1; i <= FlightRing::kRecords; ++i) {
    ring->begin(sum_of(3), static_cast<int64_t>(i), std::string(100, 't'), std::string(100, 'g'));
  }
  ring->end(first);  // no longer recorded: ends no other call
  const auto records = ring->last();
  ASSERT_EQ(records.size(), FlightRing::kRecords);
  EXPECT_EQ(records.front().sequence, 1);
  EXPECT_EQ(records.back().sequence, static_cast<int64_t>(FlightRing::kRecords));
  for (const FlightRecord& one : records) EXPECT_EQ(one.end_ns, 0);
  EXPECT_EQ(records.back().tag.beginning(), std::string(sizeof(FlightRecord::tag.text), 't'));
  EXPECT_EQ(ring->begun(), FlightRing::kRecords + 1);
}

TEST(FlightRing, ReadersSeeWholeRecordsWhileThreadsWrite) {
  const auto ring = std::make_unique<FlightRing>();
  // More writers than cores, so that writers are preempted halfway.
  constexpr int kWriters = 8, kCalls = 2000;
  std::vector<std::jthread> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&, writer] {
      const std::string name(static_cast<size_t>(writer) + 1, 'w');
      for (int i = 0; i < kCalls; ++i) ring->end(ring->begin(sum_of(writer), writer, name, name));
    });
  }
  while (ring->begun() < kWriters * kCalls) {
    for (const FlightRecord& record : ring->last()) {
      const std::string name(static_cast<size_t>(record.sequence) + 1, 'w');
      ASSERT_EQ(record.tag.beginning(), name);
      ASSERT_EQ(record.group.beginning(), name);
      ASSERT_EQ(record.signature.numel, record.sequence);
    }
  }
  writers.clear();
  // A slot may still be held by an old call's writer, but few of the last ones are.
  EXPECT_GT(ring->last().size(), FlightRing::kRecords / 2);
}

/// The flight of a rank that has made these calls on group "world", from number 0.
RankFlight rank_with(int rank, const std::vector<std::pair<int64_t, std::string>>& calls) {
  const auto ring = std::make_unique<FlightRing>();
  int64_t sequence = 0;
  for (const auto& [numel, tag] : calls) ring->begin(sum_of(numel), sequence++, tag, "world");
  return {.rank = rank, .pid = 1, .state = "runs", .begun = ring->begun(), .records = ring->last()};
}

TEST(FlightDump, IsAText) {
  std::vector<RankFlight> ranks = {rank_with(0, {{1, "a \"b\"\n"}})};
  const int64_t began = ranks[0].records[0].begin_ns;
  ranks[0].records[0].end_ns = began + 1500000;
  EXPECT_EQ(merged_text(ranks, "rank 1 died", began + 2000000000),
            "flight recorder\ncause: rank 1 died\n"
            "rank 0 (pid 1) runs; 1 calls, the last:\n"
            "  #0 all_reduce SUM float32[1] 'a \"b\"\n' on group 'world', began 2.000 s ago, took "
            "1.500 ms\n");
}

TEST(FlightDump, SaysWhatItCannotWrite) {
  ::testing::internal::CaptureStderr();
  write_flight_dump("/dev/null/none", 0, {rank_with(0, {{1, "a"}})}, "rank 1 died");
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr("cannot write '/dev/null/none/flight-rank-0-"), Not(HasSubstr("wrote"))));
}

TEST(FlightDump, MakesTheFolder) {
  const TemporaryDirectory directory;
  const std::string folder = directory.path() + "/job/17";
  write_flight_dump(folder, 0, {rank_with(0, {{1, "a"}})}, "rank 1 died");
  EXPECT_FALSE(std::filesystem::is_empty(folder));
}

TEST(FlightDump, IsWrittenOnceWhenRanksDiffer) {
  const TemporaryDirectory directory;
  ::setenv("TESSERA_FLIGHT_DUMP", directory.path().c_str(), /*overwrite=*/1);
  testing::run_ranks_expecting_errors(3, [](std::shared_ptr<ProcessGroup> group) {
    at::Tensor tensor = at::ones({4});
    group->all_reduce(tensor, ReduceOp::kSum, "same")->wait();
    if (group->rank() == 0) group->isend(tensor, 1, "halo");
    group->all_reduce(tensor, ReduceOp::kSum, group->rank() == 2 ? "odd" : "even")->wait();
  });
  ::unsetenv("TESSERA_FLIGHT_DUMP");
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    files.push_back(entry.path());
  }
  ASSERT_EQ(files.size(), 1U);
  for (const auto& file : files) {
    const std::string text = testing::content_of(file);
    EXPECT_THAT(text, HasSubstr("called all_reduce SUM float32[4] 'odd' where rank "));
    EXPECT_THAT(text, HasSubstr("all_reduce SUM float32[4] 'even' on group 'world'"));
    EXPECT_THAT(text, HasSubstr("all_reduce SUM float32[4] 'odd' on group 'world'"));
    EXPECT_THAT(text, HasSubstr("halo"));
    EXPECT_THAT(text, HasSubstr("same"));
  }
}

/// Much longer than the delay between ranks that are on time.
constexpr auto kReportAfter = std::chrono::milliseconds(1000);

testing::RankThreadOptions reporting_soon() {
  testing::RankThreadOptions options;
  options.report_after = kReportAfter;
  return options;
}

TEST(FlightReport, OneRankSaysWhoHasNotComeAndWhereItWasLastSeen) {
  testing::WarningsOfRanks warnings;
  testing::run_ranks(
      3,
      [&](std::shared_ptr<ProcessGroup> group) {
        const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
        group->barrier("all here");
        if (group->rank() == 1) warnings.await();
        group->barrier("late");
        group->barrier("end");
      },
      reporting_soon());
  ASSERT_EQ(warnings.texts().size(), 1U);
  EXPECT_THAT(warnings.texts()[0],
              AllOf(HasSubstr("[comm] barrier 'late' #1 on group 'world': rank "),
                    HasSubstr(" ms for rank 1 (pid "),
                    HasSubstr("which is a thread of this process, last seen in #0 barrier 'all "
                              "here' on group 'world', over "),
                    HasSubstr("until the time-out of 20000 ms"), Not(HasSubstr("and for"))));
}

TEST(FlightReport, SoDoesAMessage) {
  std::atomic<bool> is_received{false};
  testing::WarningsOfRanks warnings;
  testing::run_ranks(
      2,
      [&](std::shared_ptr<ProcessGroup> group) {
        const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
        at::Tensor tensor = at::zeros({3});
        if (group->rank() == 1) {
          group->recv(tensor, 0, "halo");
          is_received = true;
          return;
        }
        warnings.await();
        group->send(tensor, 1, "halo");
        // A rank that leaves takes its messages along.
        while (!is_received) std::this_thread::yield();
      },
      reporting_soon());
  ASSERT_EQ(warnings.texts().size(), 1U);
  EXPECT_THAT(warnings.texts()[0],
              AllOf(HasSubstr("[comm] recv float32[3] from rank 0 'halo' on group 'world': rank 1 "
                              "has waited "),
                    HasSubstr(" ms for rank 0 (pid ")));
}

/// For processes: the late rank must be stopped, or in pause(), by then.
constexpr auto kReportOfProcesses = std::chrono::milliseconds(2000);
/// Text of the report about the intended wait, not about an earlier one.
constexpr const char* kLate = "barrier 'late' #1";

const testing::RankProcessBody kWaitLong("wait long", [] {
  const auto world = init_process_group({.report_after = kReportOfProcesses});
  world->barrier("all here");
  if (world->rank() == 1) ::raise(SIGSTOP);  // until the test says so
  world->barrier("late");
});

TEST(FlightReport, ALongWaitSaysThatAProcessIsStopped) {
  testing::RankProcesses ranks(2, "wait long");
  ASSERT_TRUE(ranks.wait_for_output(0, kLate));
  ranks.kill(1, SIGCONT);
  const auto results = ranks.wait();
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(results[0].output,
              AllOf(HasSubstr("barrier 'late' #1 on group 'world': rank 0 has waited "),
                    HasSubstr("which is stopped (SIGSTOP or a debugger), last seen in #0 barrier "
                              "'all here'")));
}

const testing::RankProcessBody kComeLate("come late", [] {
  const auto world = init_process_group({.report_after = kReportOfProcesses});
  ::signal(SIGUSR1, [](int) {});
  world->barrier("all here");
  if (world->rank() == 1) ::pause();  // until the test has seen the report
  world->barrier("late");
});

TEST(FlightReport, ALongWaitSaysThatAProcessRuns) {
  testing::RankProcesses ranks(2, "come late");
  ASSERT_TRUE(ranks.wait_for_output(0, kLate));
  ranks.kill(1, SIGUSR1);
  const auto results = ranks.wait();
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(results[0].output, HasSubstr("which runs (sleeps), last seen in #0 barrier"));
}

const testing::RankProcessBody kDie("die", [] {
  const auto world = testing::join();
  world->barrier("all here");
  testing::say("has met");
  if (world->rank() == 1) ::pause();  // until the test kills it
  world->barrier("never");
});

TEST(FlightDump, HasTheLastCallsOfARankThatWasKilled) {
  const TemporaryDirectory directory;
  testing::RankProcessOptions options;
  options.environment = {{"TESSERA_FLIGHT_DUMP", directory.path()}};
  testing::RankProcesses ranks(2, "die", options);
  // Without this rank 0 could see the death in 'all here' and not begin 'never'.
  ASSERT_TRUE(ranks.wait_for_output(0, "has met"));
  ranks.kill(1);
  const auto results = ranks.wait();
  EXPECT_THAT(results[0].output, HasSubstr("[comm] flight recorder: wrote "));
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    EXPECT_THAT(
        testing::content_of(entry.path()),
        AllOf(HasSubstr("is gone"), HasSubstr("all here"), HasSubstr("never"), HasSubstr("died")));
  }
  EXPECT_FALSE(directory.is_empty());
}

}  // namespace
}  // namespace tessera::internal
