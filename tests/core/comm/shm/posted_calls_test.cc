// Collectives that are posted and advance later: Note [Calls under way]. Nothing here sleeps: if a
// call waited, a latch would never open and the groups' time-out would end the test.
#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/shm/sync.h"
#include "tessera/errors.h"
#include "tessera/process_group.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_expecting_errors;
using Group = std::shared_ptr<ProcessGroup>;

/// [numel] in the arena: rank r has r + 1 + i at index i.
at::Tensor values_of(const Group& group, int64_t numel) {
  at::Tensor values = group->allocate(numel, at::kFloat);
  values.copy_(at::arange(numel, at::kFloat).add_(group->rank() + 1));
  return values;
}

at::Tensor sum_of_values(int size, int64_t numel) {
  return at::arange(numel, at::kFloat).mul_(size).add_(size * (size + 1) / 2);
}

std::shared_ptr<Work> post_all_reduce(const Group& group, const at::Tensor& values,
                                      std::string_view tag) {
  return group->check_and_run(
      {.op = Op::kAllReduce, .output = values, .input = values, .posted = true, .tag = tag});
}

class PostedCalls : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, PostedCalls, ::testing::Values(2, 3, 4));

/// A thread that waits in another group advances this group's calls while these are made.
TEST_P(PostedCalls, AreMadeWhileAnotherThreadTakesPartInEarlierOnes) {
  constexpr int kRounds = 2000;
  run_ranks(GetParam(), [](const Group& world) {
    const Group others = duplicate(*world, "others");
    std::thread waiter([&] {
      for (int i = 0; i < kRounds; ++i) others->barrier("round");
    });
    const at::Tensor first = values_of(world, 64);
    const at::Tensor second = values_of(world, 65);
    for (int i = 0; i < kRounds; ++i) {
      first.fill_(i);
      second.fill_(2 * i);
      const auto one = post_all_reduce(world, first, "first");
      const auto two = post_all_reduce(world, second, "second");
      one->wait();
      two->wait();
      EXPECT_EQ(first[63].item<float>(), static_cast<float>(world->size() * i));
      EXPECT_EQ(second[64].item<float>(), static_cast<float>(world->size() * 2 * i));
    }
    waiter.join();
  });
}

TEST_P(PostedCalls, ReturnBeforeAPeerHasMadeThem) {
  const int size = GetParam();
  std::latch others_have_posted(size - 1);
  run_ranks(size, [&](const Group& world) {
    constexpr int kCalls = 5;
    std::vector<at::Tensor> values;
    std::vector<std::shared_ptr<Work>> works;
    const bool is_late = world->rank() == size - 1;
    if (is_late) others_have_posted.wait();
    for (int i = 0; i < kCalls; ++i) {
      values.push_back(values_of(world, 1001 + i));
      works.push_back(post_all_reduce(world, values.back(), absl::StrCat("bucket ", i)));
      if (!is_late) {
        EXPECT_FALSE(works.back()->is_completed());
      }
    }
    if (!is_late) others_have_posted.count_down();
    for (int i = 0; i < kCalls; ++i) {
      works[i]->wait();
      EXPECT_TRUE(works[i]->is_completed());
      EXPECT_TRUE(at::equal(values[i], sum_of_values(size, 1001 + i))) << i;
    }
  });
}

TEST_P(PostedCalls, HaveTheBitsOfCallsThatWait) {
  run_ranks(GetParam(), [](const Group& world) {
    const int size = world->size(), rank = world->rank();
    const int64_t numel = 257 * size;
    at::manual_seed(rank);
    const at::Tensor input = at::randn({numel});
    at::Tensor whole = world->allocate(numel, at::kFloat), again = input.clone();
    at::Tensor scattered = world->allocate(numel, at::kFloat), slice = at::empty({257});
    at::Tensor gathered = at::empty({numel});
    whole.copy_(input);
    scattered.copy_(input);
    const int own = (rank + 1) % size;
    const Collective reduce{.op = Op::kAllReduce,
                            .output = whole,
                            .input = whole,
                            .reduce = ReduceOp::kAvg,
                            .divisor = 7.0,
                            .posted = true};
    const Collective scatter{.op = Op::kReduceScatter,
                             .output = slice,
                             .input = scattered,
                             .slice = own,
                             .posted = true};
    const Collective gather{.op = Op::kAllGather,
                            .output = gathered,
                            .input = scattered.narrow(0, 0, 257),
                            .posted = true};
    const auto first = world->check_and_run(reduce);
    const auto second = world->check_and_run(scatter);
    const auto third = world->check_and_run(gather);
    third->wait();  // out of order
    first->wait();
    second->wait();
    world->all_reduce(again, ReduceOp::kAvg, {}, 7.0)->wait();
    EXPECT_TRUE(at::equal(whole, again));
    at::Tensor slice_again = at::empty({257}), gathered_again = at::empty({numel});
    world->reduce_scatter(slice_again, input, ReduceOp::kSum, {}, own)->wait();
    EXPECT_TRUE(at::equal(slice, slice_again));
    world->all_gather(gathered_again, input.narrow(0, 0, 257).contiguous())->wait();
    EXPECT_TRUE(at::equal(gathered, gathered_again));
  });
}

TEST_P(PostedCalls, MoreThanTheRingHoldsWaitForTheFirst) {
  run_ranks(GetParam(), [](const Group& world) {
    constexpr int64_t kCalls = 3 * shm::ChannelSlot::kCalls + 5;
    std::vector<at::Tensor> values;
    std::vector<std::shared_ptr<Work>> works;
    for (int64_t i = 0; i < kCalls; ++i) {
      values.push_back(values_of(world, i));  // one of them is empty
      works.push_back(post_all_reduce(world, values.back(), "one of many"));
    }
    for (int64_t i = 0; i < kCalls; ++i) {
      works[i]->wait();
      EXPECT_TRUE(at::equal(values[i], sum_of_values(world->size(), i)));
    }
  });
}

TEST_P(PostedCalls, FinishBeforeOtherCallsOfTheGroup) {
  run_ranks(GetParam(), [](const Group& world) {
    at::Tensor values = values_of(world, 99);
    const auto work = post_all_reduce(world, values, "posted");
    const auto window = world->make_window(world->allocate(3, at::kLong).zero_(), "window");
    EXPECT_TRUE(work->is_completed());
    EXPECT_TRUE(at::equal(values, sum_of_values(world->size(), 99)));
    at::Tensor more = values_of(world, 99);
    const auto again = post_all_reduce(world, more, "posted again");
    const auto copy = duplicate(*world, "copy");
    const auto of_copy = post_all_reduce(copy, values_of(copy, 5), "of the copy");
    world->barrier("behind both");
    EXPECT_TRUE(again->is_completed());
    of_copy->wait();
    for (int64_t i = 0; i < 2 * shm::ChannelSlot::kCalls; ++i) world->barrier("many");
    at::Tensor last = values_of(world, 99);
    post_all_reduce(world, last, "behind many")->wait();
    EXPECT_TRUE(at::equal(last, sum_of_values(world->size(), 99)));
  });
}

/// A rank that waits in one group advances calls of its other groups: rank 0 waits in `second` for
/// a rank that waits for rank 0's part in `first`.
TEST_P(PostedCalls, GoOnWhileTheRankWaitsInAnotherGroup) {
  run_ranks(GetParam(), [](const Group& world) {
    const auto first = duplicate(*world, "first"), second = duplicate(*world, "second");
    at::Tensor values = values_of(first, 1001);
    const auto work = post_all_reduce(first, values, "posted");
    if (world->rank() == 0) second->barrier("behind it");
    work->wait();
    EXPECT_TRUE(at::equal(values, sum_of_values(world->size(), 1001)));
    if (world->rank() != 0) second->barrier("behind it");
  });
}

TEST_P(PostedCalls, OfPrivateMemoryOnOneRankRunAsEver) {
  run_ranks(GetParam(), [](const Group& world) {
    for (int i = 0; i < 3; ++i) {
      at::Tensor values = values_of(world, 200000);
      if (world->rank() == 1) values = values.clone();
      post_all_reduce(world, values, "mixed")->wait();
      EXPECT_TRUE(at::equal(values, sum_of_values(world->size(), 200000)));
    }
  });
}

TEST_P(PostedCalls, ThatDifferAreNamedByAllRanks) {
  const auto errors = run_ranks_expecting_errors(GetParam(), [](const Group& world) {
    const at::Tensor values = values_of(world, 10);
    post_all_reduce(world, values, "same");
    const bool differs = world->rank() == 1;
    const auto work = post_all_reduce(world, values_of(world, 10), differs ? "b" : "a");
    const auto later = post_all_reduce(world, values_of(world, 10), "later");
    while (!later->is_completed()) {
    }
    later->wait();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 1 called all_reduce SUM float32[10] 'b' where "
                                           "rank 0 called all_reduce SUM float32[10] 'a'"))));
}

TEST_P(PostedCalls, BesideAnotherCallAreNamedByAllRanks) {
  for (const char* other : {"barrier", "gather", "window", "subgroup"}) {
    const auto errors = run_ranks_expecting_errors(GetParam(), [&](const Group& world) {
      if (world->rank() != 1) {
        post_all_reduce(world, values_of(world, 10), "bucket 3")->wait();
        return;
      }
      if (other == std::string("barrier")) world->barrier("vote");
      if (other == std::string("gather")) {
        world->all_gather(at::zeros({2 * world->size()}), at::zeros({2}), "vote")->wait();
      }
      if (other == std::string("window")) world->make_window(values_of(world, 3), "vote");
      if (other == std::string("subgroup")) world->subgroup({0}, "vote");
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("'bucket 3'"), HasSubstr("vote")))) << other;
  }
}

TEST_P(PostedCalls, OfASliceThatTwoRanksAskForAreRefused) {
  const auto errors = run_ranks_expecting_errors(GetParam(), [](const Group& world) {
    const at::Tensor input = values_of(world, world->size() * 8);
    world
        ->check_and_run({.op = Op::kReduceScatter,
                         .output = at::zeros({8}),
                         .input = input,
                         .slice = 0,
                         .posted = true})
        ->wait();
  });
  EXPECT_THAT(errors, Each(HasSubstr("both asked for slice 0")));
}

TEST_P(PostedCalls, NameARankThatLeftWithoutThem) {
  const auto errors = run_ranks_expecting_errors(GetParam(), [](const Group& world) {
    if (world->rank() == 1) return;
    post_all_reduce(world, values_of(world, 10), "bucket")->wait();
  });
  EXPECT_EQ(errors[1], "");
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 1 left the group after"), HasSubstr("'bucket'")));
}

TEST_P(PostedCalls, ARankThatPostsAndLeavesKeepsItsMemoryThere) {
  std::latch has_left(1);
  const auto errors = run_ranks_expecting_errors(GetParam(), [&](const Group& world) {
    const auto copy = duplicate(*world, "copy");
    if (world->rank() == 1) {
      {
        const auto other = duplicate(*world, "left");
        const auto work = post_all_reduce(other, values_of(other, 10), "bucket");
        EXPECT_FALSE(work->is_completed());
      }
      has_left.count_down();
      copy->barrier("behind it");
      return;
    }
    const auto other = duplicate(*world, "left");
    has_left.wait();
    std::string error;
    try {
      post_all_reduce(other, values_of(other, 10), "bucket")->wait();
    } catch (const CommError& failed) {
      error = failed.cause();
    }
    EXPECT_THAT(error, HasSubstr("rank 1 left the group after 0 collectives"));
    copy->barrier("behind it");
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(PostedCalls, EndByAnAbort) {
  const auto errors = run_ranks_expecting_errors(GetParam(), [](const Group& world) {
    const auto work = post_all_reduce(world, values_of(world, 10), "bucket");
    const auto last = world->rank() == 1
                          ? nullptr
                          : post_all_reduce(world, values_of(world, 10), "never complete");
    if (world->rank() == 1) world->abort("enough");
    if (last == nullptr) {
      post_all_reduce(world, values_of(world, 10), "refused")->wait();
    } else {
      last->wait();
    }
  });
  EXPECT_THAT(errors, Each(HasSubstr("enough")));
}

TEST_P(PostedCalls, AWorkOutlivesItsGroup) {
  std::latch is_over(GetParam());
  run_ranks(GetParam(), [&](const Group& world) {
    std::shared_ptr<Work> pending, finished;
    {
      const auto copy = duplicate(*world, "copy");
      finished = post_all_reduce(copy, values_of(copy, 10), "finished");
      finished->wait();
      if (world->rank() == 0) pending = post_all_reduce(copy, values_of(copy, 10), "pending");
    }
    finished->wait();
    if (pending != nullptr) {
      EXPECT_TRUE(pending->is_completed());
      EXPECT_THROW(pending->wait(), CommError);
    }
    is_over.arrive_and_wait();
  });
}

TEST(PostedCallsTimeOut, NamesTheRankThatHasNotPosted) {
  constexpr auto kLimit = std::chrono::milliseconds(1500);
  std::latch is_over(3);
  const auto errors = run_ranks_expecting_errors(
      3,
      [&](const Group& world) {
        if (world->rank() == 2) {
          is_over.arrive_and_wait();
          return;
        }
        const auto work = post_all_reduce(world, values_of(world, 10), "bucket 1");
        const auto next = post_all_reduce(world, values_of(world, 10), "bucket 2");
        std::string error;
        try {
          next->wait();
        } catch (const CommError& failed) {
          error = failed.what();
        }
        EXPECT_THAT(error,
                    HasSubstr(absl::StrCat(" waited ", kLimit.count(), " ms for rank 2 (pid ")));
        is_over.arrive_and_wait();
      },
      {.timeout = kLimit});
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace tessera::internal
