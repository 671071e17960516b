// Ranks that mpirun has started, over the MPI that it belongs to: under_mpirun.sh starts this
// program so (TESSERA_TEST_MPI_JOB). Without that these tests are skipped.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/mpi/group.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/core/comm/groups/group_suite.h"
#include "tessera/tests/support/forked_child.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/same_bits.h"

namespace tessera::internal {
namespace {

using testing::GroupBackend;
using ::testing::HasSubstr;
using testing::message_of;

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
  /// The suite counts ranks that see a mismatch in one process: that is left to the fake.
  static GroupBackend backend() {
    GroupBackend backend{.name = "mpi", .world_sizes = {world_->size()}, .run = nullptr};
    backend.run = [](int, const auto& body) { body(fresh()); };
    backend.compares_counts = false;
    return backend;
  }

  static inline std::shared_ptr<ProcessGroup> world_;
};

TEST_F(MpiJob, Reductions) { test_reductions(backend()); }
TEST_F(MpiJob, Moves) { test_moves(backend()); }
TEST_F(MpiJob, UnevenAllToAll) { test_uneven_all_to_all(backend()); }
TEST_F(MpiJob, CoalescedAndBytes) { test_coalesced_and_bytes(backend()); }
TEST_F(MpiJob, Subgroups) { test_subgroups(backend()); }
TEST_F(MpiJob, ThousandOperations) { test_thousand_operations(backend()); }
TEST_F(MpiJob, Messages) { test_messages(backend()); }
TEST_F(MpiJob, MessagesBesideCollectives) { test_messages_beside_collectives(backend()); }

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

TEST_F(MpiJob, MovesMoreThanTwoGigabytes) {
  if (world_->size() != 2) GTEST_SKIP() << "once is enough";
  const int64_t numel = (int64_t{1} << 31) + 5;
  at::Tensor tensor = at::zeros({numel}, at::kByte);
  if (world_->rank() == 1) {
    tensor[0] = 1;
    tensor[numel / 2] = 2;
    tensor[numel - 1] = 3;
  }
  world_->broadcast(tensor, 1, "large")->wait();
  EXPECT_EQ(tensor[0].item<int>(), 1);
  EXPECT_EQ(tensor[numel / 2].item<int>(), 2);
  EXPECT_EQ(tensor[numel - 1].item<int>(), 3);
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

/// What a rank that fails leaves behind: each is a job of its own, that ends by it.
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
  const auto group = init_process_group(options);
  if (group->rank() == 1) ::raise(SIGSTOP);
  at::Tensor tensor = at::ones({100});
  std::fprintf(stderr, "%s\n", message_of([&] {
                                 group->all_reduce(tensor, ReduceOp::kSum, "stopped")->wait();
                               }).c_str());
}

/// Rank 0 never looks whether its world has failed.
TEST_F(MpiScenario, AbortedWhileARankSleeps) {
  const auto group = init_process_group({.backend = "mpi"});
  group->barrier("all are there");
  if (group->rank() == 1) group->abort("the user's reason");
  while (group->rank() == 0) ::pause();
}

/// The others may hear of it in their last step of making the group.
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
