// Ranks that mpirun has started, two on each of two hosts (TESSERA_HOST), by under_mpirun.sh, which
// sets TESSERA_TEST_HOSTS_JOB. Otherwise these tests are skipped.
#include <sys/inotify.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/rendezvous.h"
#include "tessera/tests/core/comm/groups/group_suite.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal {
namespace {

using ::testing::Each;
using testing::GroupBackend;
using ::testing::HasSubstr;
using testing::kNothingThrown;
using testing::message_of;
using ::testing::Not;
using ::testing::StartsWith;

/// Files created in /tmp during its life, by any process.
class NewFiles {
 public:
  NewFiles() { ::inotify_add_watch(queue_, "/tmp", IN_CREATE); }
  ~NewFiles() { ::close(queue_); }
  NewFiles(const NewFiles&) = delete;
  NewFiles& operator=(const NewFiles&) = delete;

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    alignas(inotify_event) char events[1 << 16];
    for (ssize_t size = 0; (size = ::read(queue_, events, sizeof(events))) > 0;) {
      for (const char* at = events; at < events + size;) {
        const auto& event = *reinterpret_cast<const inotify_event*>(at);
        names.emplace_back(event.name);
        at += sizeof(event) + event.len;
      }
    }
    return names;
  }

 private:
  const int queue_ = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
};

class HostsJob : public ::testing::Test {
 protected:
  static bool is_job() { return std::getenv("TESSERA_TEST_HOSTS_JOB") != nullptr; }
  static void SetUpTestSuite() {
    if (!is_job()) return;
    world_ = init_process_group({.timeout = std::chrono::seconds(30)});
  }
  static void TearDownTestSuite() { world_.reset(); }
  void SetUp() override {
    if (!is_job()) GTEST_SKIP() << "not started by under_mpirun.sh";
  }

  static GroupBackend backend() {
    GroupBackend backend{.name = "hosts", .world_sizes = {world_->size()}, .run = nullptr};
    backend.run = [](int, const auto& body) {
      static int made = 0;
      body(duplicate(*world_, absl::StrCat("group ", ++made)));
    };
    backend.in_one_process = false;
    return backend;
  }

  static inline std::shared_ptr<ProcessGroup> world_;
};

TEST_F(HostsJob, IsOfTwoHosts) {
  EXPECT_EQ(world_->backend(), "hosts");
  EXPECT_EQ(world_->name(), "world");
  const auto host = world_->subgroup({0, 1}, "first host");
  ASSERT_EQ(host != nullptr, world_->rank() < 2);
  EXPECT_EQ(host == nullptr ? "shm" : host->backend(), "shm");
}
TEST_F(HostsJob, Reductions) { test_reductions(backend()); }
TEST_F(HostsJob, Moves) { test_moves(backend()); }
TEST_F(HostsJob, UnevenAllToAll) { test_uneven_all_to_all(backend()); }
TEST_F(HostsJob, CoalescedAndBytes) { test_coalesced_and_bytes(backend()); }
TEST_F(HostsJob, Subgroups) { test_subgroups(backend()); }
TEST_F(HostsJob, ThousandOperations) { test_thousand_operations(backend()); }
TEST_F(HostsJob, ChainedCalls) { test_chained_calls(backend()); }
TEST_F(HostsJob, ChainsBesideOtherCalls) { test_chains_beside_other_calls(backend()); }
TEST_F(HostsJob, ArrivalInAnyOrder) { test_arrival_in_any_order(backend()); }
TEST_F(HostsJob, DelayedCalls) { test_delayed_calls(backend()); }
TEST_F(HostsJob, Messages) { test_messages(backend()); }
TEST_F(HostsJob, MessagesBesideCollectives) { test_messages_beside_collectives(backend()); }

// The second call is summed inside the host while the first is between hosts.
TEST_F(HostsJob, CallsOnTheSameMemoryHaveTheEffectOfOneAfterTheOther) {
  constexpr int64_t kNumel = 1 << 18;
  at::Tensor pool = at::ones({kNumel + 2});
  std::vector<std::shared_ptr<Work>> works;
  for (int k = 0; k < 12; ++k) {
    works.push_back(world_->all_reduce(pool.narrow(0, k % 3, kNumel), ReduceOp::kSum, "twice"));
  }
  for (const auto& work : works) work->wait();
  const double factor = world_->size();
  EXPECT_EQ(pool[kNumel / 2].item<double>(), std::pow(factor, 12));
  EXPECT_EQ(pool[0].item<double>(), std::pow(factor, 4));
  EXPECT_EQ(pool[kNumel].item<double>(), std::pow(factor, 8));
}

// A rank that is killed while the ranks of a host meet would leave a file behind. Other names in
// /tmp belong to tests that run concurrently.
TEST_F(HostsJob, MeetsWithoutFiles) {
  const NewFiles files;
  const auto world = init_process_group({.timeout = std::chrono::seconds(30)});
  EXPECT_EQ(world->backend(), "hosts");
  world->barrier("all have met");
  EXPECT_THAT(files.names(), Each(Not(StartsWith(absl::StrCat("tessera-", ::geteuid())))));
}

/// How a failing rank ends the job: each scenario is a separate job that fails.
class HostsScenario : public HostsJob {};

TEST_F(HostsScenario, CallsThatDifferAreNamedAndTheJobEndsInOrder) {
  at::Tensor tensor = at::ones({world_->rank() == 3 ? 1000 : 1001});
  // All meet first; otherwise a failure would end the others' init_process_group(). A rank that
  // leaves the barrier late hears of the failure there.
  EXPECT_THAT(message_of([&] {
                world_->barrier("all have met");
                world_->all_reduce(tensor, ReduceOp::kSum, "sum")->wait();
              }),
              HasSubstr("rank 3 called all_reduce SUM float32[1000] 'sum' where rank 2 called "
                        "all_reduce SUM float32[1001] 'sum'"));
  EXPECT_THAT(message_of([&] { world_->barrier("later"); }), HasSubstr("float32[1000]"));
}

// under_mpirun.sh gives the ranks different backends.
TEST_F(HostsScenario, RanksOfDifferentBackends) { FAIL() << "they have met"; }

TEST_F(HostsScenario, RankThatDoesNotCome) {
  const auto world = init_process_group({.timeout = std::chrono::seconds(2)});
  if (world->rank() == 1) ::pause();  // until the others call MPI_Abort
  at::Tensor tensor = at::ones({1000});
  std::fprintf(stderr, "%s\n", message_of([&] {
                                 world->all_reduce(tensor, ReduceOp::kSum, "missed")->wait();
                               }).c_str());
}

[[noreturn]] void sum_for_ever(ProcessGroup& group) {
  while (true) {
    at::Tensor tensor = at::ones({1000});
    group.all_reduce(tensor, ReduceOp::kSum, "missed")->wait();
  }
}

/// It is in exit() until the others have left, and its groups still exist.
TEST_F(HostsScenario, RankThatExitsAtOnce) {
  const auto world = init_process_group({.timeout = std::chrono::seconds(50)});
  const auto meet_and_sum = [&] {
    world->barrier("all have met");  // as above
    if (world->rank() == 1) std::exit(3);
    sum_for_ever(*world);
  };
  std::fprintf(stderr, "%s\n", message_of(meet_and_sum).c_str());
}

/// Calls that it has begun end on all ranks, although the others make them while it is in exit().
TEST_F(HostsScenario, RankThatExitsWithCallsUnderWay) {
  const auto world = init_process_group({.timeout = std::chrono::seconds(50)});
  world->barrier("all have met");
  static ProcessGroup* exiting = nullptr;
  exiting = world.get();
  at::Tensor tensor = at::ones({100000});
  at::Tensor word = at::ones({1});
  if (world->rank() != 1) world->recv(word, 1, "in exit()");
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 3; ++i) works.push_back(world->all_reduce(tensor, ReduceOp::kSum, "begun"));
  if (world->rank() == 1) {
    std::atexit([] {
      for (const int other : {0, 2, 3}) exiting->send(at::ones({1}), other, "in exit()");
    });
    std::exit(3);
  }
  const auto wait = [&] {
    for (const auto& work : works) work->wait();
  };
  EXPECT_EQ(message_of(wait), kNothingThrown);
  EXPECT_TRUE(at::equal(tensor, at::full({100000}, 64.0f)));
  std::fprintf(stderr, "%s\n", message_of([&] { world->barrier("missed"); }).c_str());
}

TEST_F(HostsScenario, RankThatExitsBesideAGroupOfItsHost) {
  const auto world = init_process_group({.timeout = std::chrono::seconds(50)});
  const auto left = world->subgroup({0, 1}, "left");
  if (left != nullptr) left->barrier("once");
  if (world->rank() == 1) std::exit(3);
  const auto sum = [&] { sum_for_ever(left != nullptr ? *left : *world); };
  std::fprintf(stderr, "%s\n", message_of(sum).c_str());
}

}  // namespace
}  // namespace tessera::internal
