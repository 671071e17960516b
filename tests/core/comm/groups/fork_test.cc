// Processes that fork: ranks made by fork(), and children of ranks, which own nothing.
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/memory/freed_memory.h"
#include "tessera/core/memory/huge_pages.h"
#include "tessera/core/sched/lane.h"
#include "tessera/process_group.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/support/forked_child.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::ForkedChild;
using ::testing::HasSubstr;
using testing::message_of;
using testing::RankProcessBody;
using testing::RankProcessOptions;
using testing::RankResult;
using testing::run_in_fork;
using testing::run_rank_processes;
using testing::run_ranks;
using testing::say;

// GCC 12's sanitizers do not hold their allocators' locks across fork(), so in the child a lock may
// stay locked for ever. Under them no other thread may be active during a fork.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kAllocatorSurvivesFork = false;
#else
constexpr bool kAllocatorSurvivesFork = true;
#endif

// --- Ranks made by fork() ---

constexpr int kForkedRanks = 3;

/// Returns a forked rank's sum over all of them.
std::string sum_of_forked_rank(int rank) {
  ProcessGroupOptions options;
  options.rank = rank;
  options.world_size = kForkedRanks;
  options.store_url = std::getenv("TESSERA_STORE");
  options.timeout = std::chrono::seconds(20);
  options.lane = ProcessGroupOptions::Lane::kInline;  // a sanitizer allows a child no threads
  const auto world = init_process_group(std::move(options));
  const at::Tensor tensor = world->allocate(1000, at::kFloat);
  tensor.fill_(rank + 1);
  world->all_reduce(tensor, ReduceOp::kSum, "sum")->wait();
  return absl::StrCat("rank ", rank, " sums ", tensor.min().item<float>(), " to ",
                      tensor.max().item<float>());
}

std::shared_ptr<ProcessGroup> make_own_world() {
  ProcessGroupOptions options;
  options.rank = 0;
  options.world_size = 1;
  options.backend = "shm";
  options.lane = ProcessGroupOptions::Lane::kInline;
  return init_process_group(std::move(options));
}

/// A process that becomes the parent of all ranks.
const RankProcessBody kParent("forks_ranks", [] {
  std::shared_ptr<ProcessGroup> before;
  at::Tensor kept;
  if (std::getenv("TEST_HAS_GROUP") != nullptr) {
    before = make_own_world();
    kept = before->allocate(10, at::kFloat);
  }
  for (int rank = 0; rank < kForkedRanks; ++rank) {
    if (::fork() != 0) continue;
    say(message_of([&] { say(sum_of_forked_rank(rank)); }));
    ::_exit(0);
  }
  for (int status; ::wait(&status) > 0;) {
  }
});

std::vector<std::string> lines_of_all_sums() {
  std::vector<std::string> lines;
  lines.reserve(kForkedRanks);
  for (int rank = 0; rank < kForkedRanks; ++rank) {
    lines.push_back(absl::StrCat("rank ", rank, " sums 6 to 6\n"));
  }
  return lines;
}

TEST(Fork, RanksForkedFromAProcessThatHasAGroupSumRightly) {
  RankProcessOptions options;
  options.environment = {{"TEST_HAS_GROUP", "1"}};
  const std::string output = run_rank_processes(1, "forks_ranks", options)[0].output;
  for (const std::string& line : lines_of_all_sums()) EXPECT_THAT(output, HasSubstr(line));
}

TEST(Fork, RanksForkedFromAProcessWithoutGroupsSumRightly) {
  const std::string output = run_rank_processes(1, "forks_ranks")[0].output;
  for (const std::string& line : lines_of_all_sums()) EXPECT_THAT(output, HasSubstr(line));
}

// --- Children of ranks ---

std::shared_ptr<ProcessGroup> join(ProcessGroupOptions::Lane lane) {
  ProcessGroupOptions options;
  options.timeout = std::chrono::seconds(20);
  options.lane = lane;
  return init_process_group(std::move(options));
}

/// Forks a child that returns from main(), where everything that it inherited is destroyed.
void fork_a_child_that_returns(ProcessGroupOptions::Lane lane) {
  const auto world = join(lane);
  const auto other = duplicate(*world, "other");
  const at::Tensor mine = world->allocate(100, at::kFloat);
  if (world->rank() == 0) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      return;
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    say(absl::StrCat("child ended with ", status));
  }
  world->barrier("the child has ended");
  other->barrier("the child has ended");
  say("done");
}

const RankProcessBody kReturningChild("child_returns", [] {
  fork_a_child_that_returns(ProcessGroupOptions::Lane::kInline);
});

void expect_a_clean_end(const std::vector<RankResult>& results) {
  for (const RankResult& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("done"));
  }
  EXPECT_THAT(results[0].output, HasSubstr("child ended with 0\n"));
}

TEST(Fork, AChildThatReturnsFromMainLeavesItsParentInTheGroup) {
  expect_a_clean_end(run_rank_processes(2, "child_returns"));
  expect_a_clean_end(run_rank_processes(3, "child_returns"));
}

/// In a child peers' memory is unchanged, too; errors name the child's parent.
const RankProcessBody kChildOfEach("child_of_each", [] {
  const auto world = join(ProcessGroupOptions::Lane::kInline);
  const auto buffer = world->make_shared_buffer(4096, "shared");
  const at::Tensor common = buffer->common(0, 8, at::kFloat);
  if (world->rank() == 0) common.fill_(7);
  world->barrier("filled");
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    say(absl::StrCat("one of ", world->size(), ", shared ", common[3].item<float>(), ", ",
                     message_of([&] { world->barrier("of a child"); })));
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  world->barrier("the children have ended");
});

TEST(Fork, AChildOfAnyRankSeesWhatItsParentSaw) {
  const std::vector<RankResult> results = run_rank_processes(3, "child_of_each");
  for (size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_THAT(results[rank].output,
                AllOf(HasSubstr("one of 3, shared 7, "),
                      HasSubstr(absl::StrCat("this process is a fork of rank ", rank, " (pid "))));
  }
}

/// All calls that a child could make.
std::vector<std::pair<std::string, std::function<void()>>> calls_of_a_child(ProcessGroup& world,
                                                                            Window& window,
                                                                            SharedBuffer& buffer) {
  const at::Tensor tensor = at::ones({8});
  const at::Tensor wide = at::ones({8 * world.size()});
  return {
      {"all_reduce", [&, tensor] { world.all_reduce(tensor, ReduceOp::kSum, "x")->wait(); }},
      {"reduce_scatter",
       [&, tensor, wide] { world.reduce_scatter(tensor, wide, ReduceOp::kSum)->wait(); }},
      {"all_gather", [&, tensor, wide] { world.all_gather(wide, tensor)->wait(); }},
      {"broadcast", [&, tensor] { world.broadcast(tensor, 0)->wait(); }},
      {"barrier", [&] { world.barrier("of a child"); }},
      {"make_shared_buffer", [&] { world.make_shared_buffer(64, "of a child"); }},
      {"subgroup", [&] { duplicate(world, "of a child"); }},
      {"allocate", [&] { world.allocate(8, at::kFloat); }},
      {"window read", [&] { window.read(0, 0, at::empty({1}, at::kLong)); }},
      {"window store", [&] { window.store(0, 7); }},
      {"window load", [&] { window.load(0, 0); }},
      {"find_own_write", [&] { buffer.find_own_write(); }},
      {"drop_own_writes", [&] { buffer.drop_own_writes(); }},
  };
}

class ForkOfRank : public ::testing::TestWithParam<std::pair<int, ProcessGroupOptions::Lane>> {
 protected:
  /// Runs its argument, which forks, in the last rank only.
  using OnLast = std::function<void(const std::function<void()>& fork_a_child)>;

  /// Runs `body` on ranks that are threads.
  void on_ranks(const std::function<void(ProcessGroup& world, const OnLast& on_last)>& body) const {
    std::latch still(GetParam().first - 1), forked(1);
    testing::RankThreadOptions options;
    options.lane = GetParam().second;
    run_ranks(
        GetParam().first,
        [&](std::shared_ptr<ProcessGroup> world) {
          body(*world, [&](const std::function<void()>& fork_a_child) {
            if (world->rank() == world->size() - 1) {
              if (!kAllocatorSurvivesFork) still.wait();
              fork_a_child();
              forked.count_down();
            } else if (!kAllocatorSurvivesFork) {
              still.count_down();
              forked.wait();
            }
          });
        },
        options);
  }
};

TEST_P(ForkOfRank, ThrowsAtOnceFromEveryCallAndTouchesNobody) {
  on_ranks([](ProcessGroup& world, const OnLast& on_last) {
    const auto window = world.make_window(world.allocate(4, at::kLong).zero_(), "words");
    const auto buffer = world.make_shared_buffer(64, "buffer");
    ASSERT_NE(buffer, nullptr);
    world.barrier("before the fork");
    on_last([&] {
      const ForkedChild child = run_in_fork([&] {
        std::string said;
        for (const auto& [name, call] : calls_of_a_child(world, *window, *buffer)) {
          absl::StrAppend(&said, name, ": ", message_of(call), "\n");
        }
        world.abort("by a child");
        return said;
      });
      EXPECT_EQ(child.exit_code, 0) << child.text;
      const std::vector<std::string> lines = absl::StrSplit(child.text, '\n', absl::SkipEmpty());
      EXPECT_EQ(lines.size(), 13u);
      EXPECT_THAT(lines,
                  Each(HasSubstr(absl::StrCat("this process is a fork of rank ", world.rank()))));
    });
    world.barrier("after the fork");
    const at::Tensor sum = at::ones({5});
    world.all_reduce(sum, ReduceOp::kSum, "after the fork")->wait();
    EXPECT_EQ(sum[0].item<float>(), static_cast<float>(world.size()));
    EXPECT_EQ(window->load(world.size() - 1, 0), 0);
  });
}

TEST_P(ForkOfRank, WritesToACopyOfWhatRanksShare) {
  on_ranks([](ProcessGroup& world, const OnLast& on_last) {
    const at::Tensor mine = world.allocate(5000, at::kFloat).fill_(1);
    const auto buffer = world.make_shared_buffer(20000, "buffer");
    const at::Tensor common = buffer->common(0, 5000, at::kFloat);
    const at::Tensor view = buffer->view(0, 5000, at::kFloat);
    if (world.rank() == 0) common.fill_(2);
    world.barrier("filled");
    on_last([&] {
      const ForkedChild child = run_in_fork([&] {
        const bool sees_own = mine.eq(1).all().item<bool>() && view.eq(2).all().item<bool>();
        mine.fill_(8);
        common.fill_(9);
        view.fill_(10);
        return absl::StrCat(sees_own, mine[7].item<float>(), " ", common[7].item<float>(), " ",
                            view[7].item<float>());
      });
      EXPECT_EQ(child.text, "18 9 10");
      EXPECT_TRUE(mine.eq(1).all().item<bool>());
    });
    world.barrier("after the fork");
    EXPECT_TRUE(common.eq(2).all().item<bool>());
    EXPECT_TRUE(view.eq(2).all().item<bool>());
  });
}

TEST_P(ForkOfRank, MayMakeGroupsOfItsOwn) {
  on_ranks([](ProcessGroup& world, const OnLast& on_last) {
    const at::Tensor mine = world.allocate(64, at::kFloat).fill_(3);
    world.barrier("before the fork");
    on_last([&] {
      const ForkedChild child = run_in_fork([] {
        const auto own = make_own_world();
        const at::Tensor tensor = own->allocate(64, at::kFloat).fill_(5);
        own->all_reduce(tensor, ReduceOp::kSum, "own")->wait();
        return absl::StrCat(tensor[3].item<float>());
      });
      EXPECT_EQ(child.text, "5");
    });
    world.barrier("after the fork");
    EXPECT_TRUE(mine.eq(3).all().item<bool>());
  });
}

std::string name_of(const ::testing::TestParamInfo<ForkOfRank::ParamType>& info) {
  return absl::StrCat("World", info.param.first);
}

INSTANTIATE_TEST_SUITE_P(, ForkOfRank,
                         ::testing::Values(std::pair(2, ProcessGroupOptions::Lane::kInline),
                                           std::pair(3, ProcessGroupOptions::Lane::kInline)),
                         &name_of);

// --- Children of a process whose threads are at work ---

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

const RankProcessBody kReturningChildOfLane("child_returns_lane", [] {
  fork_a_child_that_returns(ProcessGroupOptions::Lane::kThread);
});

TEST(Fork, AChildOfARankWithALaneThreadEndsToo) {
  expect_a_clean_end(run_rank_processes(3, "child_returns_lane"));
}

INSTANTIATE_TEST_SUITE_P(WithLane, ForkOfRank,
                         ::testing::Values(std::pair(3, ProcessGroupOptions::Lane::kThread)),
                         &name_of);

/// A worker that loads data needs tensors, even while other threads of its parent are active.
TEST(Fork, AChildAllocatesTensorsWhateverTheParentsThreadsDo) {
  keep_freed_memory(kHugePageBytes);
  std::atomic<bool> is_over{false};
  std::thread busy([&] {
    while (!is_over) at::empty({1 << 16}, at::kFloat);  // holds its heap's lock most of the time
  });
  for (int i = 0; i < 50; ++i) {
    const ForkedChild child = run_in_fork(
        [] { return absl::StrCat(at::ones({1 << 16}, at::kFloat).sum().item<float>()); });
    EXPECT_EQ(child.exit_code, 0);
    EXPECT_EQ(child.text, "65536");
    if (HasFailure()) break;
  }
  is_over = true;
  busy.join();
}

#endif  // no sanitizer

}  // namespace
}  // namespace tessera::internal
