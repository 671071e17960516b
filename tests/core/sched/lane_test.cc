// Lanes: order, exceptions, closing, and the end of the process.
#include "tessera/core/sched/lane.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <limits>
#include <stdexcept>
#include <thread>
#include <vector>

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "tessera/errors.h"

namespace tessera::internal {
namespace {

TEST(Lane, InlineRunsInTheCallAndThrowsFromIt) {
  Lane lane(Lane::Mode::kInline);
  const auto caller = std::this_thread::get_id();
  std::thread::id ran;
  auto work = lane.post([&] { ran = std::this_thread::get_id(); });
  EXPECT_EQ(ran, caller);
  EXPECT_TRUE(work->is_completed());
  work->wait();
  EXPECT_EQ(work, completed_work()) << "the inline path allocates nothing";
  EXPECT_THROW(lane.post([] { throw std::runtime_error("now"); }), std::runtime_error);
}

TEST(Lane, AThreadRunsClosuresInOrder) {
  Lane lane(Lane::Mode::kThread);
  std::vector<int> order;
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 1000; ++i) works.push_back(lane.post([&order, i] { order.push_back(i); }));
  works[500]->wait();
  works.back()->wait();
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
  for (const auto& work : works) EXPECT_TRUE(work->is_completed());
}

/// Gradients have the same bits whichever thread adds them, if the mode was set before lanes were
/// made.
TEST(Lane, ItsThreadFlushesDenormalsIfItsMakerDoes) {
  for (const bool flush : {false, true}) {
    bool is_supported = true;
    float product = -1;
    std::thread([&] {
      is_supported = at::globalContext().setFlushDenormal(flush);
      Lane lane(Lane::Mode::kThread);
      lane.post([&product] {
            const volatile float smallest = std::numeric_limits<float>::min();
            product = smallest * 0.5F;
          })
          ->wait();
    }).join();
    if (!is_supported) GTEST_SKIP() << "this processor has no such mode";
    EXPECT_EQ(product == 0, flush);
  }
}

TEST(Lane, AnExceptionLeavesItsOwnWaitEachTimeAndTheLaneGoesOn) {
  Lane lane(Lane::Mode::kThread);
  auto bad = lane.post([] { throw std::runtime_error("broken"); });
  auto good = lane.post([] {});
  EXPECT_THROW(bad->wait(), std::runtime_error);
  EXPECT_THROW(bad->wait(), std::runtime_error);
  EXPECT_TRUE(bad->is_completed());
  good->wait();
}

/// Closes a lane while one closure runs and another waits, and lets the first return after `later`.
/// Returns true if the second ran, which it does if close() has not begun by then.
bool runs_what_waits(std::chrono::milliseconds later) {
  std::promise<void> begun;
  std::promise<void> go;
  auto gate = go.get_future();
  bool ran = false;
  std::shared_ptr<Work> running, waiting;
  {
    Lane lane(Lane::Mode::kThread);
    running = lane.post([&] {
      begun.set_value();
      gate.wait();
    });
    waiting = lane.post([&ran] { ran = true; });
    begun.get_future().wait();
    EXPECT_FALSE(running->is_completed());
    // The lane stops only when the running closure has returned.
    std::thread closer([&lane] { lane.close(); });
    std::this_thread::sleep_for(later);
    go.set_value();
    closer.join();
  }
  running->wait();
  if (ran) {
    waiting->wait();
  } else {
    EXPECT_THROW(waiting->wait(), CommError);
  }
  return ran;
}

TEST(Lane, ClosingDiscardsWhatHasNotBegun) {
  // On a busy machine the closing thread may need a while.
  for (std::chrono::milliseconds later(10); runs_what_waits(later); later *= 2) {
    ASSERT_LT(later, std::chrono::seconds(10));
  }
}

std::atomic<int> finished = 0;
std::shared_ptr<Lane> kept;

/// Runs before static objects are destroyed.
void exit_by_lane() {
  const bool refuses = [] {
    try {
      kept->post([] {});
    } catch (const CommError&) {
      return true;
    }
    return false;
  }();
  std::_Exit(finished == 2 && refuses ? 0 : 7);
}

/// A waiting closure ends when it is interrupted; the closure queued after it still runs, and none
/// that is posted later.
[[noreturn]] void exit_beside_a_lane() {
  std::atexit(exit_by_lane);
  static auto* const interrupted = new std::atomic<bool>(false);
  kept = std::make_shared<Lane>(Lane::Mode::kThread, [] {
    *interrupted = true;
    interrupted->notify_all();
  });
  std::promise<void> begun;
  kept->post([&] {
    begun.set_value();
    interrupted->wait(false);
    ++finished;
  });
  kept->post([] { ++finished; });
  begun.get_future().wait();
  std::exit(3);
}

TEST(LaneDeathTest, NothingRunsWhileStaticObjectsAreDestroyed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_beside_a_lane(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tessera::internal
