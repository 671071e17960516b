// Failures over the fake MPI: named on every rank, and never a hang.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/group/group.h"
#include "tessera/core/comm/group/host_ranks.h"
#include "tessera/errors.h"
#include "tessera/mpi_group.h"
#include "tessera/tests/core/comm/groups/call_differences.h"
#include "tessera/tests/core/comm/groups/message_misfits.h"
#include "tessera/tests/core/comm/mpi/mpi_ranks.h"
#include "tessera/tests/support/fake_mpi/fake_mpi.h"
#include "tessera/tests/support/forked_child.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::message_of;
using testing::run_mpi_ranks;
using testing::run_mpi_ranks_expecting_errors;

constexpr auto kShort = std::chrono::milliseconds(1000);

/// The text of such a time-out.
std::string waited_short() { return absl::StrCat(" waited ", kShort.count(), " ms"); }

void reduce(ProcessGroup& group, int64_t numel, const std::string& tag) {
  at::Tensor tensor = at::ones({numel});
  group.all_reduce(tensor, ReduceOp::kSum, tag)->wait();
}

TEST(MpiFailures, CallsThatDifferAreNamedOnEveryRank) {
  for (const int64_t numel : {int64_t{3}, int64_t{3000}}) {
    const auto errors = run_mpi_ranks_expecting_errors(3, [&](std::shared_ptr<ProcessGroup> group) {
      reduce(*group, 5, "first");
      if (group->rank() == 2) group->barrier("other");
      reduce(*group, numel, "sum");
    });
    const std::string cause =
        "rank 2 called barrier 'other' where rank 0 called all_reduce SUM "
        "float32[" +
        std::to_string(numel) + "] 'sum'";
    EXPECT_THAT(errors, Each(HasSubstr(cause)));
    EXPECT_THAT(errors[0],
                HasSubstr("[comm] all_reduce #1 'sum' on group 'world', rank 0: rank 2"));
  }
  const auto tags = run_mpi_ranks_expecting_errors(2, [](std::shared_ptr<ProcessGroup> group) {
    reduce(*group, 3, group->rank() == 0 ? "a" : "b");
  });
  EXPECT_THAT(tags,
              Each(HasSubstr("rank 1 called all_reduce SUM float32[3] 'b' where rank 0 called "
                             "all_reduce SUM float32[3] 'a'")));
}

TEST(MpiFailures, EveryDifferenceBetweenCallsIsNamedOnEveryRank) {
  for (const testing::CallDifference& difference : testing::call_differences(3)) {
    const auto errors = run_mpi_ranks_expecting_errors(3, [&](std::shared_ptr<ProcessGroup> group) {
      (group->rank() == 1 ? difference.other : difference.usual)(*group);
    });
    EXPECT_THAT(errors, Each(HasSubstr(difference.text))) << difference.name;
  }
}

TEST(MpiFailures, AGroupThatHasFailedSaysTheSameAgainAndItsSiblingsGoOn) {
  run_mpi_ranks(2, [](std::shared_ptr<ProcessGroup> world) {
    const auto group = duplicate(*world, "one");
    const auto fail = [&] { reduce(*group, 3 + group->rank(), "sum"); };
    const std::string first = message_of(fail);
    EXPECT_THAT(first, HasSubstr("rank 1 called all_reduce SUM float32[4] 'sum' where rank 0"));
    EXPECT_THAT(message_of([&] { group->barrier("later"); }),
                HasSubstr("rank 1 called all_reduce SUM float32[4] 'sum' where rank 0"));
    reduce(*world, 3, "the world's");
  });
}

/// The ranks of one host, one of which is lost from some moment on.
class LosingHost final : public HostRanks {
 public:
  std::string failure() override { return lost_rank(); }
  std::string lost_rank() override { return is_lost_ ? "rank 7 died" : ""; }
  void fail(std::string_view cause, bool /*is_author*/) noexcept override { heard_ = cause; }
  std::shared_ptr<FlightRing> flights() override { return std::make_shared<FlightRing>(); }
  void dump_flights(std::string_view /*cause*/) noexcept override {}
  void leave() override {}
  void lose() { is_lost_ = true; }
  /// Call it after the failed ranks have returned.
  std::string heard() const { return heard_; }

 private:
  std::string heard_;
  std::atomic<bool> is_lost_{false};
};

/// Makes the call and waits until all ranks have returned from it or thrown.
template <typename Call>
void after_all(std::latch& all, Call&& call) {
  try {
    call();
  } catch (...) {
    all.count_down();
    throw;
  }
  all.arrive_and_wait();
}

// Only rank 1 is on that host, and no rank waits for it.
TEST(MpiFailures, ARankThatItsHostHasLostEndsAllWhoeverWaitsForWhom) {
  const auto host = std::make_shared<LosingHost>();
  std::latch none_was_lost(3);
  const auto errors = run_mpi_ranks_expecting_errors(3, [&](std::shared_ptr<ProcessGroup> group) {
    if (group->rank() == 1) dynamic_cast<Group&>(*group).link().watch(host);
    after_all(none_was_lost, [&] {
      for (int i = 0; i < 3; ++i) group->barrier("while none is lost");
    });
    if (group->rank() == 2) host->lose();
    at::Tensor tensor = at::ones({3});
    if (group->rank() != 2) group->recv(tensor, 2, "never sent");
    if (group->rank() == 2) group->recv(tensor, 0, "never sent");
  });
  EXPECT_THAT(errors, Each(HasSubstr("'never sent' on group 'world', rank ")));
  EXPECT_THAT(errors, Each(HasSubstr(": rank 7 died")));
  EXPECT_EQ(host->heard(), "rank 7 died");
}

// Rank 1 tells the others one after the other, and cannot reach the first.
TEST(MpiFailures, ARankThatIsGoneDoesNotKeepTheCauseFromTheOthers) {
  const auto host = std::make_shared<LosingHost>();
  std::latch are_there(4);
  std::atomic<int> over{0};
  const auto errors = run_mpi_ranks_expecting_errors(4, [&](std::shared_ptr<ProcessGroup> group) {
    const int rank = group->rank();
    if (rank == 1) dynamic_cast<Group&>(*group).link().watch(host);
    const auto meet = [&] { after_all(are_there, [&] { group->barrier("before"); }); };
    at::Tensor tensor = at::ones({3});
    if (rank == 0) {
      meet();
      testing::break_sends_to(0);
      host->lose();
      while (over.load() < 3) std::this_thread::yield();
      return;
    }
    const std::string error = message_of([&] {
      meet();
      group->recv(tensor, 0, "never sent");
    });
    ++over;
    throw std::runtime_error(error);
  });
  testing::break_sends_to(-1);
  for (const int rank : {1, 2, 3}) {
    EXPECT_THAT(errors[static_cast<size_t>(rank)], HasSubstr(": rank 7 died"));
  }
}

TEST(MpiFailures, TheTimeOutNamesWhoIsMissing) {
  std::atomic<bool> is_over{false};
  const auto errors = run_mpi_ranks_expecting_errors(
      3,
      [&](std::shared_ptr<ProcessGroup> group) {
        if (group->rank() == 1) {
          reduce(*group, 3000, "first");
          while (!is_over.load()) std::this_thread::yield();
          return reduce(*group, 3, "too late");
        }
        const std::string error = message_of([&] {
          reduce(*group, 3000, "first");
          reduce(*group, 3, "second");
        });
        is_over.store(true);
        throw std::runtime_error(error);
      },
      kShort);
  for (const int rank : {0, 2}) {
    EXPECT_THAT(
        errors[rank],
        AllOf(HasSubstr("all_reduce #1 'second' on group 'world', rank " + std::to_string(rank)),
              HasSubstr(waited_short() + " for rank 1, which has finished 1 collective")));
  }
  // It learns one of two first: the others' error, or their call.
  EXPECT_THAT(errors[1],
              AllOf(HasSubstr("all_reduce #1 'too late' on group 'world', rank 1: "),
                    AnyOf(HasSubstr(waited_short() + " for rank 1"),
                          HasSubstr("where rank 0 called all_reduce SUM float32[3] 'second'"))));
}

TEST(MpiFailures, ARankThatLeavesIsNamed) {
  const auto errors = run_mpi_ranks_expecting_errors(3, [](std::shared_ptr<ProcessGroup> group) {
    reduce(*group, 3, "first");
    if (group->rank() == 1) return;
    reduce(*group, 3, "second");
  });
  EXPECT_EQ(errors[1], "");
  EXPECT_THAT(errors[0], HasSubstr("rank 1 left the group after 1 collective"));
  EXPECT_THAT(errors[2], HasSubstr("rank 1 left the group after 1 collective"));
}

TEST(MpiFailures, AnExceptionThatUnwindsEndsTheOthers) {
  const auto errors = run_mpi_ranks_expecting_errors(3, [](std::shared_ptr<ProcessGroup> group) {
    if (group->rank() == 2) throw std::runtime_error("of its own");
    reduce(*group, 3000, "sum");
  });
  EXPECT_EQ(errors[2], "of its own");
  EXPECT_THAT(errors[0], HasSubstr("rank 2 left while an exception unwound"));
  EXPECT_THAT(errors[1], HasSubstr("rank 2 left while an exception unwound"));
}

/// All ranks throw after the same collective, some earlier than others: no rank may see that
/// another left.
TEST(MpiFailures, WhatTheRankThatThrowsHasFinishedAllFinish) {
  for (int i = 0; i < 60; ++i) {
    const auto errors = run_mpi_ranks_expecting_errors(3, [i](std::shared_ptr<ProcessGroup> group) {
      const auto other = duplicate(*group, "one");
      reduce(i % 2 == 0 ? *group : *other, i % 3 == 0 ? 3 : 3000, "sum");
      throw std::runtime_error("all the same");
    });
    EXPECT_THAT(errors, Each("all the same"));
  }
}

TEST(MpiFailures, AnAbortEndsAllGroups) {
  const auto errors = run_mpi_ranks_expecting_errors(3, [](std::shared_ptr<ProcessGroup> world) {
    const auto group = duplicate(*world, "one");
    if (world->rank() == 0) world->abort("the user's reason");
    reduce(*group, 3000, "sum");
  });
  EXPECT_THAT(errors, Each(HasSubstr("the user's reason")));
}

TEST(MpiFailures, AnErrorOfMpiNamesRankAndFunction) {
  const auto errors = run_mpi_ranks_expecting_errors(
      2,
      [](std::shared_ptr<ProcessGroup> group) {
        reduce(*group, 3000, "first");
        if (group->rank() == 1) testing::break_next_send(1);
        reduce(*group, 3000, "second");
      },
      kShort);
  EXPECT_THAT(errors,
              Each(ContainsRegex("rank 1 failed: MPI_Isend to rank [0-9]+[^:]*: broken wire")));
  // Rank 0 may hear of it before it has finished the call that rank 1 has finished.
  EXPECT_THAT(errors[0], AnyOf(HasSubstr("all_reduce #1 'second' on group 'world', rank 0"),
                               HasSubstr("all_reduce #0 'first' on group 'world', rank 0")));
}

TEST(MpiFailures, SlicesThatAreNoPermutationAreRefused) {
  const auto errors = run_mpi_ranks_expecting_errors(2, [](std::shared_ptr<ProcessGroup> group) {
    at::Tensor slice = at::zeros({2});
    group->reduce_scatter(slice, at::ones({4}), ReduceOp::kSum, "x", 1)->wait();
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 and rank 0 both asked for slice 1")));
}

TEST(MpiFailures, MessagesThatDoNotFitAreNamedOnBothRanks) {
  for (const int64_t numel : {int64_t{4}, int64_t{4000}, int64_t{50000}}) {
    testing::expect_misfit_is_named(
        [](int size, const auto& body) { return run_mpi_ranks_expecting_errors(size, body); },
        numel);
  }
}

TEST(MpiFailures, AMessageThatNobodySendsIsNamed) {
  std::latch is_sent(2);
  std::atomic<bool> is_over{false};
  const auto errors = run_mpi_ranks_expecting_errors(
      2,
      [&](std::shared_ptr<ProcessGroup> group) {
        const auto send_other = [&] {
          if (group->rank() == 0) group->send(at::zeros({2}), 1, "other");
        };
        after_all(is_sent, send_other);
        if (group->rank() == 0) {
          while (!is_over.load()) std::this_thread::yield();
          return;
        }
        at::Tensor tensor = at::zeros({3});
        const std::string error = message_of([&] { group->recv(tensor, 0, "wanted"); });
        is_over.store(true);
        throw std::runtime_error(error);
      },
      kShort);
  EXPECT_THAT(errors[1], HasSubstr("recv 'wanted' on group 'world', rank 1: timed out:" +
                                   waited_short() + " for rank 0 to send 'wanted'"));
  EXPECT_THAT(errors[1], HasSubstr("what has come: send float32[2] to rank 1 'other' of rank 0"));
  const auto left = run_mpi_ranks_expecting_errors(2, [](std::shared_ptr<ProcessGroup> group) {
    at::Tensor tensor = at::zeros({3});
    if (group->rank() == 1) group->recv(tensor, 0, "wanted");
  });
  EXPECT_THAT(left[1], HasSubstr("rank 0 left the group without sending 'wanted'"));
}

// Ranks that give up still drain messages, which must not make the senders believe they arrived.
TEST(MpiFailures, ALargeMessageThatNobodyReceivesWasNotSent) {
  for (int round = 0; round < 20; ++round) {
    run_mpi_ranks_expecting_errors(3, [](std::shared_ptr<ProcessGroup> group) {
      const at::Tensor large = at::zeros({100000});
      if (group->rank() == 0) {
        EXPECT_THAT(message_of([&] { group->send(large, 1, "lost"); }), HasSubstr("given up"));
      } else if (group->rank() == 1) {
        EXPECT_THAT(message_of([&] { group->recv(large, 2, "never"); }), HasSubstr("given up"));
      } else {
        group->abort("given up");
      }
    });
  }
}

TEST(MpiGroups, AGroupOutlivesThoseThatItWasMadeOf) {
  for (int round = 0; round < 200; ++round) {
    run_mpi_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
      auto one = duplicate(*world, "one");
      const auto two = duplicate(*one, "two");
      world.reset();
      one.reset();
      reduce(*two, 3, "of the last");
    });
  }
}

TEST(MpiFailures, Case29ARankThatDoesNotComeToTheWorldIsATimeOut) {
  EXPECT_THAT(run_mpi_ranks_expecting_errors(1, [](auto group) { reduce(*group, 3, "alone"); }),
              Each(""));
  const auto error = message_of([] {
    const auto alone = testing::fake_communicator(-7, 2, 0);
    tessera::mpi::process_group(testing::fake_mpi(), alone, kShort);
  });
  EXPECT_THAT(error,
              HasSubstr("timed out:" + waited_short() + ", and not all ranks of the communicator"));
}

/// Sends a message that MPI has taken, and then all ranks leave.
[[noreturn]] void leave_behind_a_message(bool ends) {
  if (!ends) testing::never_end_next_data_of(0);
  run_mpi_ranks(
      2,
      [](std::shared_ptr<ProcessGroup> group) {
        const at::Tensor tensor = at::ones({2000});
        if (group->rank() == 0) group->send(tensor, 1, "kept");
        if (group->rank() == 1) group->recv(tensor, 0, "kept");
      },
      kShort);
  tessera::mpi::leave();
  std::_Exit(3);
}

TEST(MpiFailuresDeathTest, WhatDoesNotEndWhenAllRanksHaveLeftIsGivenUp) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(leave_behind_a_message(/*ends=*/true), ::testing::ExitedWithCode(3), "");
  EXPECT_EXIT(leave_behind_a_message(/*ends=*/false), ::testing::KilledBySignal(SIGABRT),
              "had failed: what was under way when all ranks left has not ended. MPI_Abort ends");
}

TEST(MpiLevels, AnMpiThatCannotBeUsedIsRefusedByName) {
  using tessera::mpi::Calls;
  const auto error_at = [](Calls::Level level) {
    testing::set_fake_level(level);
    const std::string error =
        message_of([] { tessera::mpi::process_group(testing::fake_mpi(), 0, kShort); });
    testing::set_fake_level(Calls::kMultiple);
    return error;
  };
  EXPECT_THAT(error_at(Calls::kSingle),
              HasSubstr("thread level: got MPI_THREAD_SINGLE from the application's MPI_Init"));
  EXPECT_THAT(error_at(Calls::kFunneled), HasSubstr("got MPI_THREAD_FUNNELED"));
  EXPECT_THAT(error_at(Calls::kNone), HasSubstr("got an MPI that is not initialised"));
  EXPECT_THAT(error_at(Calls::kFinalized), HasSubstr("the application has finalised"));
}

TEST(MpiFork, AChildIsNoRank) {
  run_mpi_ranks(1, [](std::shared_ptr<ProcessGroup> group) {
    reduce(*group, 3, "before");
    const auto child = testing::run_in_fork(
        [&] { return message_of([&] { reduce(*group, 3, "in the child"); }); });
    EXPECT_THAT(child.text, HasSubstr("this process is a fork of rank 0"));
    reduce(*group, 3, "after");
  });
}

}  // namespace
}  // namespace tessera::internal
