// The times of a step's parts, with a clock that the test sets.
#include "tessera/core/sched/step_times.h"

#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/core/sched/timed_work.h"

namespace tessera::internal {
namespace {

int64_t fake_ns = 0;
int64_t clock_reads = 0;
int64_t fake_clock() {
  ++clock_reads;
  return fake_ns;
}

class StepTimesTest : public ::testing::Test {
 protected:
  StepTimesTest() {
    fake_ns = 1000;
    clock_reads = 0;
  }
  /// A step without communication that takes 30 ns of forward, 20 of backward and 10 of update.
  void make_step() {
    times.begin_step();
    fake_ns += 30;
    times.begin_backward();
    fake_ns += 20;
    times.end_gradients();
    times.end_backward();
    fake_ns += 5;  // the program's own time
    times.begin_update();
    fake_ns += 10;
    times.end_step();
  }

  StepTimes times{true, &fake_clock};
};

TEST_F(StepTimesTest, PhasesOfEveryMicroStepAddUp) {
  times.begin_step();
  for (int micro = 0; micro < 3; ++micro) {
    fake_ns += 100;
    times.begin_backward();
    fake_ns += 50;
    times.end_gradients();
    fake_ns += 7;  // the rest of the reductions
    times.end_backward();
  }
  fake_ns += 1;
  times.begin_update();
  fake_ns += 20;
  times.end_step();
  EXPECT_EQ(times.sums().steps, 1);
  EXPECT_EQ(times.sums().forward, 300);
  EXPECT_EQ(times.sums().backward, 150);
  EXPECT_EQ(times.sums().update, 20);
  EXPECT_EQ(times.sums().communication, 0);
  EXPECT_EQ(times.sums().overlap, 0);
}

TEST_F(StepTimesTest, SamplesTheFirstTenStepsAndEachHundredth) {
  for (int step = 0; step < 10; ++step) make_step();
  EXPECT_EQ(times.sums().steps, 10);
  const int64_t reads = clock_reads;
  for (int step = 10; step < 99; ++step) make_step();
  EXPECT_EQ(times.sums().steps, 10);
  EXPECT_EQ(clock_reads, reads) << "other steps cost nothing";
  for (int step = 99; step < 250; ++step) make_step();
  EXPECT_EQ(times.sums().steps, 12);
  EXPECT_EQ(times.sums().forward, 12 * 30);
  EXPECT_EQ(times.sums().backward, 12 * 20);
  EXPECT_EQ(times.sums().update, 12 * 10);
}

TEST_F(StepTimesTest, DropsAStepThatDoesNotEnd) {
  times.begin_step();
  fake_ns += 1000;
  times.begin_backward();
  const StepTimes::Begun stale = times.begin_communication();
  make_step();
  EXPECT_EQ(times.sums().forward, 30);
  times.begin_step();
  times.add_wait(stale, stale.ns, /*is_done=*/true);
  times.end_step();
  EXPECT_EQ(times.sums().communication, 0);
}

TEST_F(StepTimesTest, NothingIsSampledWhereTheHostKnowsNothing) {
  StepTimes none(false, &fake_clock);
  none.begin_step();
  EXPECT_FALSE(none.is_sampling());
  none.end_step();
  EXPECT_EQ(none.sums().steps, 0);
  EXPECT_EQ(clock_reads, 0);
}

// The same through timed communications.

/// A collective that ends at a given time of the clock.
struct LaterWork final : Work {
  explicit LaterWork(int64_t done) : done_ns(done) {}
  bool is_completed() override { return fake_ns >= done_ns; }
  void wait() override { fake_ns = std::max(fake_ns, done_ns); }
  const int64_t done_ns;
};

class TimedWorkTest : public StepTimesTest {
 protected:
  /// Starts a communication that takes `in_call` ns inside the call and `beside` ns after it.
  TimedWork start() {
    return {&times, [this]() -> std::shared_ptr<Work> {
              fake_ns += in_call;
              if (beside == 0) return completed_work();
              return std::make_shared<LaterWork>(fake_ns + beside);
            }};
  }

  int64_t in_call = 0;
  int64_t beside = 0;
};

TEST_F(TimedWorkTest, WhatRunsInsideTheCallsOverlapsWithNothing) {
  in_call = 40;
  times.begin_step();
  times.begin_backward();
  fake_ns += 100;
  EXPECT_EQ(start().work(), completed_work());
  fake_ns += 100;
  start();
  times.end_gradients();
  times.end_backward();
  times.end_step();
  EXPECT_EQ(times.sums().backward, 280);
  EXPECT_EQ(times.sums().communication, 80);
  EXPECT_EQ(times.sums().overlap, 0);
}

TEST_F(TimedWorkTest, OverlapIsWhatNobodyWaitsFor) {
  in_call = 1;
  beside = 100;
  times.begin_step();
  times.begin_backward();
  TimedWork first = start();  // until 1101
  fake_ns += 60;
  TimedWork second = start();  // until 1162
  EXPECT_FALSE(first.is_completed());
  fake_ns += 60;
  EXPECT_TRUE(first.is_completed());
  first.wait();
  times.end_gradients();
  second.wait();
  second.wait();
  times.end_backward();
  fake_ns += 1000;
  times.end_step();
  // From 1000 to 1162 at least one is under way; the calls take 2 ns, the last wait 40 ns.
  EXPECT_EQ(times.sums().communication, 162);
  EXPECT_EQ(times.sums().overlap, 162 - 2 - 40);
}

TEST_F(TimedWorkTest, StepsThatAreNotSampledReadNoClock) {
  for (int step = 0; step < 10; ++step) make_step();
  beside = 100;
  times.begin_step();
  const int64_t reads = clock_reads;
  TimedWork work = start();
  EXPECT_FALSE(work.is_completed());
  work.wait();
  EXPECT_EQ(clock_reads, reads);
}

TEST_F(TimedWorkTest, NoneIsNothing) {
  times.begin_step();
  EXPECT_EQ(TimedWork(&times, [] { return std::shared_ptr<Work>(); }).work(), nullptr);
  EXPECT_EQ(TimedWork().work(), nullptr);
}

}  // namespace
}  // namespace tessera::internal
