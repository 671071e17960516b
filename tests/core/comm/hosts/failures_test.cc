// Failures between ranks of several hosts: one cause on every rank, and never a hang.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/errors.h"
#include "tessera/tests/core/comm/groups/call_differences.h"
#include "tessera/tests/core/comm/hosts/mpi_hosts.h"
#include "tessera/tests/support/forked_child.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_hosts.h"

namespace tessera::internal {
namespace {

using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::hosts_in_order;
using testing::kNothingThrown;
using testing::message_of;
using testing::place_of_host;
using testing::run_host_ranks;
using testing::run_host_ranks_expecting_errors;
using testing::run_mpi_hosts_expecting_errors;

using Call = std::function<void(ProcessGroup&)>;

Call reduces(int64_t numel, const char* tag = "sum") {
  return [=](ProcessGroup& group) {
    group.all_reduce(at::ones({numel}), ReduceOp::kSum, tag)->wait();
  };
}

struct Odd {
  const char* name;
  Call usual;
  Call other;
  const char* usual_text;
  const char* other_text;
};

std::vector<Odd> odds() {
  return {
      {"op", reduces(1024), [](ProcessGroup& group) { group.barrier("b"); },
       "all_reduce SUM float32[1024] 'sum'", "barrier 'b'"},
      // With both sizes a rank's part has 512 elements.
      {"numel", reduces(1025), reduces(1024), "all_reduce SUM float32[1025] 'sum'",
       "all_reduce SUM float32[1024] 'sum'"},
      {"tag", reduces(3, "a"), reduces(3, "b"), "float32[3] 'a'", "float32[3] 'b'"},
      {"flat op", reduces(8),
       [](ProcessGroup& group) { group.all_to_all(at::ones({8}), at::ones({8}), "x")->wait(); },
       "all_reduce SUM float32[8] 'sum'", "all_to_all float32[8] 'x'"},
      {"subgroup",
       [](ProcessGroup& group) {
         group.subgroup({0, 1}, "part");
       },
       [](ProcessGroup& group) {
         group.subgroup({0, 2}, "part");
       },
       "subgroup 'part [0, 1]'", "subgroup 'part [0, 2]'"},
      {"shared buffer", [](ProcessGroup& group) { group.make_shared_buffer(64, "s"); },
       [](ProcessGroup& group) { group.make_shared_buffer(128, "s"); }, "make_shared_buffer",
       "make_shared_buffer"},
  };
}

/// The differences that other groups notice, too: here a host's ranks, or the hosts, notice them.
TEST(HostFailures, EveryDifferenceBetweenCallsIsNamedOnEveryRank) {
  for (const testing::CallDifference& difference : testing::call_differences(4)) {
    const auto errors =
        run_mpi_hosts_expecting_errors({0, 0, 1, 1}, [&](std::shared_ptr<ProcessGroup> group) {
          (group->rank() == 1 ? difference.other : difference.usual)(*group);
        });
    EXPECT_THAT(errors, Each(HasSubstr(difference.text))) << difference.name;
  }
}

TEST(HostFailures, CallsThatDifferAreNamedOnEveryRank) {
  for (const Odd& odd : odds()) {
    // One rank of either host, and a whole host.
    for (const auto& others : {std::vector<int>{1}, std::vector<int>{2}, std::vector<int>{2, 3}}) {
      const auto errors = run_host_ranks_expecting_errors(
          hosts_in_order(2, 2), [&](std::shared_ptr<ProcessGroup> group) {
            reduces(7, "first")(*group);
            const bool is_other = std::count(others.begin(), others.end(), group->rank()) > 0;
            (is_other ? odd.other : odd.usual)(*group);
          });
      EXPECT_THAT(errors, Each(HasSubstr(odd.usual_text))) << odd.name;
      EXPECT_THAT(errors, Each(HasSubstr(odd.other_text))) << odd.name;
      EXPECT_THAT(errors, Each(HasSubstr(" where rank "))) << odd.name;
      EXPECT_THAT(errors[0], HasSubstr(" #1 '")) << odd.name;
      EXPECT_THAT(errors[0], HasSubstr(" on group 'world', rank 0: rank ")) << odd.name;
    }
  }
}

TEST(HostFailures, EqualSlicesAreNamedOnEveryRank) {
  for (const int odd_rank : {1, 2}) {
    const auto errors = run_host_ranks_expecting_errors(
        hosts_in_order(2, 2), [&](std::shared_ptr<ProcessGroup> group) {
          const int slice = group->rank() == odd_rank ? 0 : group->rank();
          group->reduce_scatter(at::ones({3}), at::ones({12}), ReduceOp::kSum, "s", slice)->wait();
        });
    EXPECT_THAT(errors, Each(HasSubstr("rank " + std::to_string(odd_rank) +
                                       " and rank 0 both asked for slice 0 of reduce_scatter")));
  }
}

TEST(HostFailures, DataIsAsItWasAndTheGroupSaysTheSameAgain) {
  std::latch all_have_failed(4);
  const auto errors = run_host_ranks_expecting_errors(
      hosts_in_order(2, 2), [&](std::shared_ptr<ProcessGroup> world) {
        const auto group = duplicate(*world, "one");
        at::Tensor tensor = at::full({100}, 1.0f * group->rank());
        const int64_t numel = group->rank() == 3 ? 98 : 100;
        const auto fail = [&] {
          group->all_reduce(tensor.narrow(0, 0, numel), ReduceOp::kSum, "sum")->wait();
        };
        const std::string first = message_of(fail);
        EXPECT_THAT(first, HasSubstr("on group 'world/one'"));
        EXPECT_TRUE(at::equal(tensor, at::full({100}, 1.0f * group->rank())));
        EXPECT_THAT(message_of([&] { group->barrier("later"); }), HasSubstr("float32[98]"));
        world->barrier("the world goes on");
        all_have_failed.arrive_and_wait();
        throw std::runtime_error(first);
      });
  EXPECT_THAT(errors, Each(HasSubstr("rank 3 called all_reduce SUM float32[98] 'sum' where rank 2 "
                                     "called all_reduce SUM float32[100] 'sum'")));
}

TEST(HostFailures, AnExceptionThatUnwindsOneRankEndsAll) {
  for (const int odd_rank : {0, 3}) {
    const auto errors = run_host_ranks_expecting_errors(hosts_in_order(2, 2),
                                                        [&](std::shared_ptr<ProcessGroup> group) {
                                                          reduces(1000)(*group);
                                                          if (group->rank() == odd_rank)
                                                            throw std::runtime_error("bad batch");
                                                          reduces(1000)(*group);
                                                        });
    for (int rank = 0; rank < 4; ++rank) {
      const std::string text = "rank " + std::to_string(odd_rank) + " left while an exception";
      EXPECT_THAT(errors[static_cast<size_t>(rank)],
                  HasSubstr(rank == odd_rank ? "bad batch" : text));
    }
  }
}

TEST(HostFailures, AbortReachesAllHostsAndTheGroupsOfOneHost) {
  const auto errors =
      run_mpi_hosts_expecting_errors(hosts_in_order(2, 2), [](std::shared_ptr<ProcessGroup> world) {
        const auto host = split(*world, {0, 0, 1, 1}, "host");
        EXPECT_EQ(host->backend(), "shm");
        EXPECT_EQ(host->name(), world->rank() < 2 ? "world/host 0" : "world/host 1");
        if (world->rank() == 0) host->abort("the user's reason");
        try {
          reduces(1000)(*world);
        } catch (const CommError& error) {
          EXPECT_EQ(error.cause(), "the user's reason");
          EXPECT_THAT(message_of([&] { host->barrier("later"); }), HasSubstr("the user's reason"));
          throw;
        }
      });
  EXPECT_THAT(errors, Each(HasSubstr("the user's reason")));
}

TEST(HostFailures, AbortOfRanksThatOnlyMpiConnectsReachesTheGroupsOfOneHost) {
  const auto errors =
      run_mpi_hosts_expecting_errors(hosts_in_order(2, 2), [](std::shared_ptr<ProcessGroup> world) {
        const auto host = split(*world, {0, 0, 1, 1}, "host");
        const auto column = split(*world, {0, 1, 0, 1}, "column");
        EXPECT_EQ(column->backend(), "mpi");
        EXPECT_EQ(column->name(), world->rank() % 2 == 0 ? "world/column 0" : "world/column 1");
        if (world->rank() == 0) column->abort("the user's reason");
        if (world->rank() < 2) host->barrier("now");
        reduces(1000)(*world);
      });
  EXPECT_THAT(errors, Each(HasSubstr("the user's reason")));
  for (const int rank : {0, 1}) {
    EXPECT_THAT(errors[static_cast<size_t>(rank)], HasSubstr("barrier #0 'now'"));
  }
}

// Rank 0 waits in shared memory for a rank that computes and has not heard of the abort, either.
TEST(HostFailures, AbortReachesARankThatWaitsInsideAnotherHost) {
  for (const bool is_of_world : {false, true}) {
    std::atomic<bool> is_over{false};
    // Rank 3 must not abort before all have split: the others would fail in split().
    std::latch all_have_split(4);
    const auto errors = run_mpi_hosts_expecting_errors(
        hosts_in_order(2, 2), [&](std::shared_ptr<ProcessGroup> world) {
          std::shared_ptr<ProcessGroup> host;
          const std::string problem = message_of([&] {
            host = split(*world, {0, 0, 1, 1}, "host");
          });
          if (problem != kNothingThrown) {
            all_have_split.count_down();
            is_over = true;
            throw std::runtime_error(problem);
          }
          all_have_split.arrive_and_wait();
          if (world->rank() == 1) {
            while (!is_over.load()) std::this_thread::yield();
          }
          if (world->rank() == 3) world->abort("the user's reason");
          const std::string error =
              message_of([&] { (is_of_world ? *world : *host).barrier("of all"); });
          if (world->rank() == 0) is_over = true;
          throw std::runtime_error(error);
        });
    EXPECT_THAT(errors, Each(HasSubstr("barrier #")));
    EXPECT_THAT(errors, Each(HasSubstr(": the user's reason")));
  }
}

TEST(HostFailures, TheTimeOutNamesTheRankThatIsMissingAndNotThoseWhoWaitForIt) {
  constexpr auto kLimit = std::chrono::milliseconds(3000);
  std::atomic<int> over{0};
  const auto errors = run_mpi_hosts_expecting_errors(
      hosts_in_order(2, 2),
      [&](std::shared_ptr<ProcessGroup> group) {
        if (group->rank() == 2) {
          reduces(1000)(*group);
          while (over.load() < 3) std::this_thread::yield();
          return;
        }
        const std::string text = message_of([&] {
          reduces(1000)(*group);
          reduces(1000, "second")(*group);
        });
        ++over;
        throw std::runtime_error(text);
      },
      kLimit);
  for (const int rank : {0, 1, 3}) {
    EXPECT_THAT(
        errors[static_cast<size_t>(rank)],
        HasSubstr(absl::StrCat("timed out: rank 3 waited ", kLimit.count(), " ms for rank 2",
                               place_of_host(1), ", which has finished ")));
    EXPECT_THAT(errors[static_cast<size_t>(rank)],
                HasSubstr("all_reduce #1 'second' on group 'world', rank "));
  }
}

TEST(HostFailures, MessagesThatDoNotFitFailCollectivesToo) {
  const auto errors = run_host_ranks_expecting_errors(
      hosts_in_order(2, 2), [](std::shared_ptr<ProcessGroup> group) {
        at::Tensor tensor = at::ones({3}, group->rank() == 1 ? at::kInt : at::kFloat);
        if (group->rank() == 1) group->send(tensor, 2, "m");
        if (group->rank() == 2) group->recv(tensor, 1, "m");
        reduces(1000)(*group);
      });
  EXPECT_THAT(errors, Each(HasSubstr("recv float32[3] from rank 1 'm' where rank 1 called send")));
}

TEST(HostFailures, ARankThatLeavesIsNamedAlikeOnAllHosts) {
  for (const int leaver : {1, 2}) {
    const auto errors = run_host_ranks_expecting_errors(
        hosts_in_order(2, 2), [leaver](std::shared_ptr<ProcessGroup> world) {
          auto group = duplicate(*world, "one");
          reduces(1000)(*group);
          if (group->rank() == leaver) group.reset();
          // The leaver's call does not end, either.
          reduces(1000)(group == nullptr ? *world : *group);
        });
    EXPECT_THAT(errors,
                Each(HasSubstr(absl::StrCat("rank ", leaver, " left the group after 1 coll"))));
  }
}

TEST(HostFailures, AGroupThatGoesEndsItsCallsUnderWay) {
  for (const int leaver : {0, 3}) {
    const auto errors = run_host_ranks_expecting_errors(
        hosts_in_order(2, 2), [leaver](std::shared_ptr<ProcessGroup> world) {
          auto group = duplicate(*world, "one");
          reduces(1000)(*group);
          at::Tensor tensor = at::ones({1000});
          std::shared_ptr<Work> work;
          if (group->rank() != (leaver + 1) % 4) work = group->all_reduce(tensor, ReduceOp::kSum);
          if (group->rank() == leaver) group.reset();
          if (work == nullptr) reduces(1000)(*world);  // is never made by the other rank
          work->wait();
        });
    EXPECT_THAT(errors[static_cast<size_t>(leaver)],
                HasSubstr("the group was destroyed before this was over"));
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == leaver) continue;
      EXPECT_THAT(errors[static_cast<size_t>(rank)],
                  HasSubstr(absl::StrCat("rank ", leaver, " left")));
    }
  }
}

TEST(HostFailures, AForkIsNoRank) {
  run_host_ranks(hosts_in_order(2, 2), [](std::shared_ptr<ProcessGroup> group) {
    auto dropped = duplicate(*group, "dropped");
    reduces(1000)(*dropped);
    reduces(1000)(*group);
    if (group->rank() == 3) {
      const auto child =
          testing::run_in_fork([&] { return message_of([&] { group->barrier("in a child"); }); });
      EXPECT_THAT(child.text, HasSubstr("this process is a fork of rank 3"));
      // exit() must not use groups that a child has destroyed.
      const auto ended = testing::run_in_fork([&]() -> std::string {
        dropped.reset();
        std::exit(0);
      });
      EXPECT_EQ(ended.exit_code, 0);
    }
    group->barrier("after");
  });
}

}  // namespace
}  // namespace tessera::internal
