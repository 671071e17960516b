// Ranks that mpirun has started, over its MPI, by under_mpirun.sh, which sets TESSERA_TEST_MPI_JOB.
// Otherwise these tests are skipped.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/rendezvous.h"
#include "tessera/tests/core/comm/groups/group_suite.h"
#include "tessera/tests/core/comm/groups/window_suite.h"
#include "tessera/tests/support/forked_child.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/same_bits.h"

namespace tessera::internal {
namespace {

using testing::GroupBackend;
using ::testing::HasSubstr;
using testing::message_of;
using testing::read_new;
using testing::WindowBackend;

bool is_job() { return std::getenv("TESSERA_TEST_MPI_JOB") != nullptr; }

class MpiJob : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!is_job()) return;
    ProcessGroupOptions options;
    options.backend = "mpi";
    options.timeout = std::chrono::seconds(30);
    world_ = init_process_group(options);
  }
  static void TearDownTestSuite() { world_.reset(); }
  void SetUp() override {
    if (!is_job()) GTEST_SKIP() << "not started by under_mpirun.sh";
  }

  static std::shared_ptr<ProcessGroup> fresh() {
    static int made = 0;
    return duplicate(*world_, absl::StrCat("group ", ++made));
  }
  static GroupBackend backend() {
    GroupBackend backend{.name = "mpi", .world_sizes = {world_->size()}, .run = nullptr};
    backend.run = [](int, const auto& body) { body(fresh()); };
    backend.in_one_process = false;
    return backend;
  }

  static WindowBackend windows() {
    return {.world_sizes = {world_->size()}, .run = [](int, const auto& body) { body(fresh()); }};
  }

  static inline std::shared_ptr<ProcessGroup> world_;
};

TEST_F(MpiJob, Reductions) { test_reductions(backend()); }
TEST_F(MpiJob, Moves) { test_moves(backend()); }
TEST_F(MpiJob, UnevenAllToAll) { test_uneven_all_to_all(backend()); }
TEST_F(MpiJob, CoalescedAndBytes) { test_coalesced_and_bytes(backend()); }
TEST_F(MpiJob, Subgroups) { test_subgroups(backend()); }
TEST_F(MpiJob, ThousandOperations) { test_thousand_operations(backend()); }
TEST_F(MpiJob, ChainedCalls) { test_chained_calls(backend()); }
TEST_F(MpiJob, ChainsBesideOtherCalls) { test_chains_beside_other_calls(backend()); }
TEST_F(MpiJob, ArrivalInAnyOrder) { test_arrival_in_any_order(backend()); }
TEST_F(MpiJob, DelayedCalls) { test_delayed_calls(backend()); }
TEST_F(MpiJob, Messages) { test_messages(backend()); }
TEST_F(MpiJob, MessagesBesideCollectives) { test_messages_beside_collectives(backend()); }

TEST_F(MpiJob, Windows) { test_window_reads(windows()); }
TEST_F(MpiJob, ReadsThatAreStartedTogether) { test_reads_started_together(windows()); }

TEST_F(MpiJob, OwnersThatComputeAreRead) {
  const auto group = fresh();
  constexpr int64_t kNumel = 100003;
  const at::Tensor own = group->allocate(kNumel, at::kFloat);
  own.copy_(testing::window_content(group->rank(), 0, kNumel, at::kFloat));
  const auto window = group->make_window(own, "w");
  group->barrier();
  for (int reader = 0; reader < group->size(); ++reader) {
    if (group->rank() != reader) {
      const auto over = group->irecv(at::zeros({1}), reader, "over");
      while (!over->is_completed()) {
      }
      continue;
    }
    for (int i = 0; i < 30; ++i) {
      const int rank = i % group->size();
      const int64_t begin = 1000 * i;
      const at::Tensor wanted = testing::window_content(rank, 0, kNumel, at::kFloat);
      EXPECT_TRUE(at::equal(read_new(*window, rank, begin, kNumel - begin),
                            wanted.narrow(0, begin, kNumel - begin)));
    }
    for (int rank = 0; rank < group->size(); ++rank) {
      if (rank != reader) group->send(at::zeros({1}), rank, "over");
    }
  }
  group->barrier();
}

// One rank keeps its window until its process ends, long after others have left.
TEST_F(MpiJob, AnOwnerThatHasLeftIsRead) {
  static std::unique_ptr<Window> window;
  auto group = fresh();
  window = group->make_window(at::full({1000}, group->rank() + 1.0f), "w");
  group->barrier();
  const int rank = group->rank();
  const int last = group->size() - 1;
  group.reset();
  if (rank != 0) return window.reset();
  EXPECT_EQ(read_new(*window, last, 0, 1000).sum().item<float>(), 1000.0f * (last + 1.0f));
}

TEST_F(MpiJob, SumsHaveTheBitsOfSharedMemory) {
  const auto shm = init_process_group({.backend = world_->size() > 1 ? "shm" : "loopback"});
  ASSERT_EQ(shm->size(), world_->size());
  for (const int64_t numel : {int64_t{5}, int64_t{70001}, int64_t{3000001}}) {
    const at::Tensor own =
        at::sin(at::arange(numel, at::kFloat) * (0.1f + 0.01f * static_cast<float>(shm->rank())));
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      at::Tensor by_shm = own.to(dtype).clone(), by_mpi = by_shm.clone();
      shm->all_reduce(by_shm, ReduceOp::kAvg)->wait();
      world_->all_reduce(by_mpi, ReduceOp::kAvg)->wait();
      EXPECT_TRUE(testing::have_same_bits(by_shm, by_mpi)) << numel;
    }
  }
}

TEST_F(MpiJob, CallsOutliveTheirGroup) {
  for (int round = 0; round < 10; ++round) {
    auto group = fresh();
    const at::Tensor sum = at::ones({1000003});
    const auto work = group->all_reduce(sum, ReduceOp::kSum, "outlives");
    group.reset();
    work->wait();
    EXPECT_TRUE(at::equal(sum, at::full({1000003}, 1.0f * world_->size())));
  }
}

TEST_F(MpiJob, ReceivesWaitForTheLongestTimeThereIs) {
  if (world_->size() == 1) GTEST_SKIP() << "nobody sends";
  const auto group = fresh();
  const at::Tensor tensor = at::zeros({100000});
  if (group->rank() == 0) {
    const auto late = group->irecv(tensor, 1, "late");
    EXPECT_FALSE(late->wait_for(std::chrono::milliseconds(0)));
    group->send(tensor.narrow(0, 0, 1), 1, "go");
    EXPECT_TRUE(late->wait_for(std::chrono::milliseconds::max()));
    EXPECT_EQ(tensor[99999].item<float>(), 7.0f);
  } else if (group->rank() == 1) {
    group->recv(tensor.narrow(0, 0, 1), 0, "go");
    group->send(at::full({100000}, 7.0f), 0, "late");
  }
}

TEST_F(MpiJob, MovesMoreThan2To31Bytes) {
  if (world_->size() != 2) GTEST_SKIP() << "once is enough";
  test_large_collectives(backend());
  test_large_message(backend());
}

TEST_F(MpiJob, AForkIsNoRankAndDoesNotEndTheJob) {
  const auto child =
      testing::run_in_fork([&] { return message_of([] { world_->barrier("in a child"); }); });
  EXPECT_THAT(child.text, HasSubstr("this process is a fork of rank"));
  world_->barrier("after");
}

TEST_F(MpiJob, CallsThatDifferAreNamedAndTheJobEndsInOrder) {
  if (world_->size() == 1) GTEST_SKIP() << "nobody differs";
  const auto group = fresh();
  at::Tensor tensor = at::ones({3 + group->rank()});
  EXPECT_THAT(message_of([&] { group->all_reduce(tensor, ReduceOp::kSum, "sum")->wait(); }),
              HasSubstr("rank 1 called all_reduce SUM float32[4] 'sum' where rank 0 called "
                        "all_reduce SUM float32[3] 'sum'"));
  world_->barrier("after");
}

// A message that nobody receives would block its sender in MPI, and MPI ends the job then.
TEST_F(MpiJob, ALargeMessageThatDoesNotFitLeavesNothingBehind) {
  if (world_->size() == 1) GTEST_SKIP() << "nobody receives";
  const auto group = fresh();
  const at::Tensor tensor = at::zeros({20000 + group->rank()});
  const std::string error = message_of([&] {
    if (group->rank() == 0) group->send(tensor, 1, "large");
    if (group->rank() == 1) group->recv(tensor, 0, "large");
  });
  EXPECT_EQ(error == testing::kNothingThrown, group->rank() > 1) << error;
  world_->barrier("after");
}

/// How a failing rank ends the job: each scenario is a separate job that fails.
class MpiScenario : public MpiJob {};

TEST_F(MpiScenario, KilledRank) {
  world_->barrier("begin");
  if (world_->rank() == 1) ::raise(SIGKILL);
  at::Tensor tensor = at::ones({100});
  std::fprintf(stderr, "%s\n", message_of([&] {
                                 world_->all_reduce(tensor, ReduceOp::kSum, "killed")->wait();
                               }).c_str());
}

TEST_F(MpiScenario, StoppedRank) {
  ProcessGroupOptions options;
  options.backend = "mpi";
  options.timeout = std::chrono::seconds(2);
  options.report_after = std::chrono::milliseconds(300);
  const auto group = init_process_group(options);
  if (group->rank() == 1) ::raise(SIGSTOP);
  at::Tensor tensor = at::ones({100});
  std::fprintf(stderr, "%s\n", message_of([&] {
                                 group->all_reduce(tensor, ReduceOp::kSum, "stopped")->wait();
                               }).c_str());
}

/// One rank is busy for longer than the report time.
TEST_F(MpiScenario, LateRank) {
  ProcessGroupOptions options;
  options.backend = "mpi";
  options.report_after = std::chrono::milliseconds(300);
  const auto group = init_process_group(options);
  group->barrier("all here");
  if (group->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  group->barrier("late");
}

TEST_F(MpiScenario, StoppedOwner) {
  ProcessGroupOptions options;
  options.backend = "mpi";
  options.timeout = std::chrono::seconds(2);
  options.report_after = std::chrono::milliseconds(300);
  const auto group = init_process_group(options);
  const auto window = group->make_window(at::ones({1000}), "w");
  group->barrier("made");
  if (group->rank() == 1) ::raise(SIGSTOP);
  // It may answer until the signal arrives.
  std::fprintf(stderr, "%s\n", message_of([&] {
                                 while (true) read_new(*window, 1, 0, 1000);
                               }).c_str());
}

TEST_F(MpiScenario, KilledOwner) {
  const auto window = world_->make_window(at::ones({1000}), "w");
  world_->barrier("made");
  if (world_->rank() == 1) ::raise(SIGKILL);
  std::fprintf(stderr, "%s\n", message_of([&] {
                                 while (true) read_new(*window, 1, 0, 1000);
                               }).c_str());
}

/// One rank never uses MPI.
TEST(MpiStart, RankThatDoesNotCome) {
  if (!is_job()) GTEST_SKIP() << "not started by under_mpirun.sh";
  FAIL() << message_of(
      [] { init_process_group({.timeout = std::chrono::seconds(3), .backend = "mpi"}); });
}

// Not run by under_mpirun.sh: a measurement to run by hand.
TEST_F(MpiScenario, CostOfWindows) {
  using Clock = std::chrono::steady_clock;
  const auto processor_seconds = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  };
  const auto window = world_->make_window(at::ones({1 << 22}), "w");
  world_->barrier("made");
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const double before = processor_seconds();
  std::this_thread::sleep_for(std::chrono::seconds(5));
  std::fprintf(stderr, "rank %d: an idle owner uses %.2f %% of a core\n", world_->rank(),
               20 * (processor_seconds() - before));
  const auto median_us = [&](int64_t numel, std::chrono::milliseconds pause) {
    std::vector<double> times;
    for (int i = 0; i < 15; ++i) {
      std::this_thread::sleep_for(pause);
      const auto begin = Clock::now();
      read_new(*window, world_->size() - 1, 0, numel);
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  };
  for (const bool computes : {false, true}) {
    if (world_->rank() != 0) {
      const auto over = world_->irecv(at::zeros({1}), 0, "over");
      if (!computes) std::this_thread::sleep_for(std::chrono::seconds(19));
      while (!over->is_completed()) {
      }
      continue;
    }
    for (const int pause : {0, 5, 50, 1200}) {
      if (pause == 1200 && computes) continue;
      for (const int64_t numel : {int64_t{100}, int64_t{1} << 18, int64_t{1} << 22}) {
        if (pause == 1200 && numel != 100) continue;
        std::fprintf(stderr, "%s owner, %8.1f KiB, %4d ms after the last: %.0f us\n",
                     computes ? "a computing" : "an idle", static_cast<double>(numel) / 256, pause,
                     median_us(numel, std::chrono::milliseconds(pause)));
      }
    }
    for (int rank = 1; rank < world_->size(); ++rank) world_->send(at::zeros({1}), rank, "over");
  }
  world_->barrier("over");
}

/// Rank 0 never checks whether its world has failed.
TEST_F(MpiScenario, AbortedWhileARankSleeps) {
  const auto group = init_process_group({.backend = "mpi"});
  group->barrier("all are there");
  if (group->rank() == 1) group->abort("the user's reason");
  while (group->rank() == 0) ::pause();
}

/// The others may hear of it in the last step of making the group.
TEST_F(MpiScenario, AbortedWorld) {
  EXPECT_THAT(message_of([] {
                const auto group = init_process_group({.backend = "mpi"});
                if (group->rank() == 1) group->abort("the user's reason");
                at::Tensor tensor = at::ones({100});
                group->all_reduce(tensor, ReduceOp::kSum, "aborted")->wait();
              }),
              HasSubstr("the user's reason"));
}

}  // namespace
}  // namespace tessera::internal
