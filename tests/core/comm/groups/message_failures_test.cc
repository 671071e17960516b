// What goes wrong with messages between two ranks: named on both, and never a hang.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/process_group.h"
#include "tessera/tests/core/comm/groups/message_misfits.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::message_of;
using testing::run_ranks;
using testing::run_ranks_expecting_errors;

constexpr int64_t kLarge = 50000;  // floats: more than a send buffers

TEST(MessageFailures, SizesThatDifferAreNamedOnBothRanks) {
  for (const int64_t numel : {int64_t{4}, kLarge}) {
    testing::expect_misfit_is_named(
        [](int size, const auto& body) { return run_ranks_expecting_errors(size, body); }, numel);
  }
}

TEST(Messages, AreWaitedForTheLongestTimeThereIs) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    const at::Tensor tensor = at::zeros({kLarge});
    if (group->rank() == 0) {
      const auto late = group->irecv(tensor, 1, "late");
      EXPECT_FALSE(late->wait_for(std::chrono::milliseconds(0)));
      group->send(at::zeros({1}), 1, "go");
      EXPECT_TRUE(late->wait_for(std::chrono::milliseconds::max()));
      EXPECT_EQ(tensor[kLarge - 1].item<float>(), 7.0f);
    } else {
      group->recv(at::zeros({1}), 0, "go");
      group->send(at::full({kLarge}, 7.0f), 0, "late");
    }
  });
}

TEST(MessageFailures, TheTimeOutNamesPeerAndTagAndWhatHasComeInstead) {
  testing::RankThreadOptions options;
  options.timeout = std::chrono::milliseconds(1000);
  std::atomic<bool> is_sent{false}, is_over{false};
  const auto await = [](const std::atomic<bool>& flag) {
    while (!flag.load()) std::this_thread::yield();
  };
  const auto and_set = [](std::atomic<bool>& flag, auto&& call) {
    try {
      call();
    } catch (...) {
      flag.store(true);
      throw;
    }
    flag.store(true);
  };
  const auto of_receiver = run_ranks_expecting_errors(
      2,
      [&](std::shared_ptr<ProcessGroup> group) {
        if (group->rank() == 0) {
          and_set(is_sent, [&] { group->send(at::zeros({2}), 1, "other"); });
          return await(is_over);
        }
        at::Tensor tensor = at::zeros({3});
        await(is_sent);
        and_set(is_over, [&] { group->recv(tensor, 0, "wanted"); });
      },
      options);
  const std::string place = absl::StrCat(" (pid ", ::getpid(), ")");
  const std::string waited =
      absl::StrCat("timed out: waited ", options.timeout.count(), " ms for ");
  EXPECT_THAT(
      of_receiver[1],
      HasSubstr(absl::StrCat("recv 'wanted' on group 'world', rank 1: ", waited, "rank 0", place,
                             " to send 'wanted', in recv float32[3] from rank 0 'wanted' "
                             "of rank 1")));
  EXPECT_THAT(of_receiver[1], HasSubstr("what has come: send float32[2] to rank 1 'other' of rank"
                                        " 0"));
  is_over.store(false);
  const auto of_sender = run_ranks_expecting_errors(
      2,
      [&](std::shared_ptr<ProcessGroup> group) {
        if (group->rank() == 1) return await(is_over);
        and_set(is_over, [&] { group->send(at::zeros({kLarge}), 1, "big"); });
      },
      options);
  EXPECT_THAT(of_sender[0], HasSubstr(absl::StrCat(waited, "rank 1", place, " to receive 'big'")));
}

TEST(MessageFailures, ARankThatLeavesIsNamed) {
  std::atomic<bool> is_received{false};
  const auto errors = run_ranks_expecting_errors(2, [&](std::shared_ptr<ProcessGroup> group) {
    if (group->rank() == 0) {
      group->send(at::full({2}, 5.0f), 1, "small");
      while (!is_received.load()) std::this_thread::yield();
      return;
    }
    at::Tensor tensor = at::zeros({2});
    group->recv(tensor, 0, "small");
    EXPECT_TRUE(at::equal(tensor, at::full({2}, 5.0f)));
    is_received.store(true);
    group->recv(tensor, 0, "more");
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_THAT(errors[1], HasSubstr("rank 0 left the group without sending 'more'"));
  const auto of_any = run_ranks_expecting_errors(3, [](std::shared_ptr<ProcessGroup> group) {
    at::Tensor tensor = at::zeros({2});
    if (group->rank() == 1) group->recv(tensor, kAnySource, "more");
  });
  EXPECT_THAT(of_any[1], HasSubstr("every other rank left the group without sending 'more'"));
}

/// Asks until the call is over, which the harness's deadline bounds.
void poll(Work& work) {
  while (!work.is_completed()) std::this_thread::yield();
}

TEST(MessageFailures, WhoAsksHearsThatARankHasLeft) {
  for (const bool is_message : {true, false}) {
    const auto errors = run_ranks_expecting_errors(2, [&](std::shared_ptr<ProcessGroup> group) {
      if (group->rank() == 1) return;
      const at::Tensor tensor = group->allocate(kLarge, at::kFloat).zero_();
      const auto work = is_message ? group->isend(tensor, 1, "lost")
                                   : group->check_and_run({.op = Op::kAllReduce,
                                                           .output = tensor,
                                                           .input = tensor,
                                                           .posted = true,
                                                           .tag = "lost"});
      poll(*work);
      work->wait();
    });
    EXPECT_THAT(errors[0], HasSubstr("rank 1 left the group")) << is_message;
  }
}

TEST(Messages, WhoAsksGoesOnWithOtherGroups) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> world) {
    const auto other = world->subgroup({0, 1}, "other");
    const at::Tensor sum = world->allocate(3, at::kFloat).fill_(1.0);
    const auto post = [&] {
      return world->check_and_run(
          {.op = Op::kAllReduce, .output = sum, .input = sum, .posted = true, .tag = "sum"});
    };
    at::Tensor message = at::zeros({1});
    if (world->rank() == 0) {
      const auto posted = post();
      const auto received = other->irecv(message, 1, "m");
      poll(*received);  // rank 1 sends once the sum is there, which needs this rank
      posted->wait();
    } else {
      post()->wait();
      other->send(message, 0, "m");
    }
    EXPECT_EQ(sum[0].item<float>(), 2.0f);
  });
}

TEST(MessageFailures, AFailureElsewhereEndsAWait) {
  const auto errors = run_ranks_expecting_errors(2, [](std::shared_ptr<ProcessGroup> group) {
    if (group->rank() == 0) throw std::runtime_error("of its own");
    at::Tensor tensor = at::zeros({kLarge});
    group->recv(tensor, 0, "never");
  });
  EXPECT_THAT(errors[1], HasSubstr("rank 0 left"));
}

TEST(MessageFailures, WorksOutliveTheirGroup) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> world) {
    auto group = duplicate(*world, "short");
    std::shared_ptr<Work> sent, received;
    at::Tensor tensor = group->allocate(kLarge, at::kFloat);
    if (group->rank() == 0) sent = group->isend(tensor, 1, "lost");
    if (group->rank() == 0) received = group->irecv(tensor, 1, "none");
    group->barrier();
    group.reset();
    if (world->rank() != 0) return;
    EXPECT_THAT(message_of([&] { sent->wait(); }), HasSubstr("the group was destroyed before"));
    EXPECT_THAT(message_of([&] { received->wait(); }), HasSubstr("the group was destroyed before"));
  });
}

const testing::RankProcessBody kAwaitMessage("await message", [] {
  auto world = testing::join();
  at::Tensor tensor = at::zeros({kLarge});
  world->barrier("all here");
  testing::say("here");
  world->recv(tensor, 1 - world->rank(), "from the dead");
});

TEST(MessageFailures, AKilledSenderIsNamed) {
  testing::RankProcesses ranks(2, "await message");
  ASSERT_TRUE(ranks.wait_for_output(0, "here"));
  ASSERT_TRUE(ranks.wait_for_output(1, "here"));
  ranks.kill(1);
  const auto results = ranks.wait();
  EXPECT_EQ(results[0].exit_code, 1);
  EXPECT_THAT(results[0].output, HasSubstr("recv 'from the dead' on group 'world', rank 0: rank 1 "
                                           "(pid"));
  EXPECT_THAT(results[0].output, HasSubstr("died"));
}

const testing::RankProcessBody kRing("ring of messages", [] {
  auto world = testing::join();
  const int size = world->size(), rank = world->rank();
  for (const int64_t numel : {int64_t{0}, int64_t{3}, kLarge}) {
    at::Tensor sent = world->allocate(numel, at::kFloat).fill_(rank);
    at::Tensor received = at::zeros({numel});
    const auto works = world->batch_isend_irecv(
        {{Op::kSend, sent, (rank + 1) % size, "r"}, {Op::kRecv, received, kAnySource, "r"}});
    for (const auto& work : works) work->wait();
    const int from = (rank + size - 1) % size;
    if (works[1]->source() != from || !at::equal(received, at::full({numel}, 1.0f * from))) {
      throw std::runtime_error("wrong message");
    }
  }
  world->barrier("end");
});

TEST(MessageFailures, ProcessesExchangeMessages) {
  for (const auto& result : testing::run_rank_processes(3, "ring of messages")) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

}  // namespace
}  // namespace tessera::internal
