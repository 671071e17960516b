#include "tessera/run_threads.h"

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <c10/util/ScopeExit.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tessera/errors.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

using ThreadBody = std::function<void(std::shared_ptr<ProcessGroup>)>;

int64_t sum_of_thread_ranks(ProcessGroup& world) {
  const at::Tensor sum = at::full({1}, world.rank() + 1, at::kLong);
  world.all_reduce(sum, ReduceOp::kSum, "sum")->wait();
  return sum.item<int64_t>();
}

/// Returns the error of run_threads() with three ranks.
RankError error_of_three(const ThreadBody& body) {
  try {
    run_threads(3, body);
  } catch (const RankError& error) {
    return error;
  }
  return RankError({.rank = -1}, "nothing was thrown");
}

TEST(RunThreads, EachThreadIsARank) {
  for (const int n : {1, 3}) {
    std::atomic<int> ranks = 0;
    run_threads(n, [&](std::shared_ptr<ProcessGroup> world) {
      EXPECT_EQ(world->size(), n);
      EXPECT_EQ(sum_of_thread_ranks(*world), n * (n + 1) / 2);
      ranks += 1 << world->rank();
    });
    EXPECT_EQ(ranks, (1 << n) - 1);
  }
}

TEST(RunThreads, TheCallersThreadsArePutBack) {
  const int before = at::get_num_threads();
  at::set_num_threads(5);
  run_threads(3, [](std::shared_ptr<ProcessGroup>) { at::set_num_threads(2); });
  EXPECT_EQ(at::get_num_threads(), 5);
  at::set_num_threads(before);
}

TEST(RunThreads, TheRankThatFailedByItselfIsNamed) {
  const RankError error = error_of_three([](std::shared_ptr<ProcessGroup> world) {
    if (world->rank() == 1) throw std::invalid_argument("--n: got 0");
    world->barrier();
  });
  EXPECT_EQ(error.ending().rank, 1);
  EXPECT_EQ(error.ending().exit_code, 64);
  EXPECT_STREQ(error.what(), "[run_threads] rank 1 of 3: --n: got 0");
  EXPECT_THROW(std::rethrow_exception(error.ending().exception), std::invalid_argument);
}

/// Counts a thread in which it is switched on, once that thread has ended.
std::atomic<int> ended_threads = 0;
struct CountedEnd {
  ~CountedEnd() {
    if (is_on) ++ended_threads;
  }
  bool is_on = false;
};
thread_local CountedEnd counted_end;

TEST(RunThreads, TheRankThatFailedFirstIsNamedEvenIfItEndsLast) {
  const int before = ended_threads;
  const RankError error = error_of_three([&](std::shared_ptr<ProcessGroup> world) {
    if (world->rank() == 1) {
      // Destroyed after the group, whose end the others notice.
      const auto end_last = c10::make_scope_exit([&] {
        while (ended_threads < before + 2) std::this_thread::yield();
      });
      const std::shared_ptr<ProcessGroup> own = std::move(world);
      throw std::invalid_argument("--n: got 0");
    }
    counted_end.is_on = true;
    try {
      world->barrier();
    } catch (const CommError& consequence) {
      throw std::runtime_error(std::string("training failed: ") + consequence.what());
    }
  });
  EXPECT_STREQ(error.what(), "[run_threads] rank 1 of 3: --n: got 0");
}

TEST(RunThreads, ARankThatLeavesIsNamedByThoseWhoWait) {
  const RankError error = error_of_three([](std::shared_ptr<ProcessGroup> world) {
    if (world->rank() != 1) world->barrier();
  });
  EXPECT_NE(error.ending().rank, 1);
  EXPECT_EQ(error.ending().exit_code, 1);
  EXPECT_THAT(error.what(), HasSubstr("[comm] barrier"));
  EXPECT_THAT(error.what(), HasSubstr("rank 1"));
}

TEST(RunThreads, WorldsInsideAWorldAreTheirOwn) {
  run_threads(2, [](std::shared_ptr<ProcessGroup> outer) {
    run_threads(
        3, [](std::shared_ptr<ProcessGroup> inner) { EXPECT_EQ(sum_of_thread_ranks(*inner), 6); });
    EXPECT_EQ(sum_of_thread_ranks(*outer), 3);
  });
}

TEST(RunThreads, WhatCannotBeIsRefused) {
  const auto refusal = [](int n, const ProcessGroupOptions& options) {
    return message_of([&] {
      run_threads(
          n, [](std::shared_ptr<ProcessGroup>) {}, options);
    });
  };
  EXPECT_THAT(refusal(0, {}), HasSubstr("[run_threads] n: got 0, expected 1 to 4096"));
  EXPECT_THAT(refusal(2, {.rank = 0, .world_size = 2}), HasSubstr("leave them out"));
  EXPECT_THAT(refusal(2, {.store_url = "tcp://127.0.0.1:1"}), HasSubstr("leave them out"));
  EXPECT_THAT(refusal(2, {.store = c10::make_intrusive<c10d::HashStore>()}),
              HasSubstr("leave them out"));
  EXPECT_THAT(refusal(2, {.device = at::Device(at::kCUDA, 1)}), HasSubstr("rank r has GPU r"));
  EXPECT_THAT(refusal(2, {.timeout = {}}), HasSubstr("got a timeout of 0 ms"));
  for (const char* backend : {"mpi", "hosts"}) {
    EXPECT_THAT(refusal(1, {.backend = backend}), HasSubstr("as ranks of MPI are processes"));
  }
  ::setenv("TESSERA_BACKEND", "mpi", 1);
  EXPECT_THAT(refusal(2, {}), HasSubstr("[run_threads] options: got backend 'mpi'"));
  ::unsetenv("TESSERA_BACKEND");
  ::setenv("RANK", "1", 1);
  ::setenv("WORLD_SIZE", "2", 1);
  EXPECT_THAT(refusal(2, {}), HasSubstr("got a call in rank 1 of 2"));
  ::unsetenv("RANK");
  ::unsetenv("WORLD_SIZE");
  EXPECT_EQ(refusal(2, {}), kNothingThrown) << "the control";
}

}  // namespace
}  // namespace tessera::internal::testing
