// What threads do when the process ends: exit() waits for them before it destroys what is static.
#include "tessera/core/process/ending_thread.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

std::atomic<bool> is_asked = false;
std::atomic<bool> is_thread_over = false;

/// Stands for what is static and was made before any thread: behind it destructors run.
void exit_by_thread() { std::_Exit(is_thread_over ? 0 : 7); }

struct AtThreadEnd {
  ~AtThreadEnd() { is_thread_over = true; }
};

/// The thread ends only because it is asked to, and its thread-local objects go last.
[[noreturn]] void exit_beside_a_thread() {
  std::atexit(exit_by_thread);
  EndingThread(
      "the test",
      [] {
        thread_local const AtThreadEnd last;
        is_asked.wait(false);
      },
      [] {
        is_asked = true;
        is_asked.notify_all();
      })
      .detach();
  std::exit(3);
}

/// Nobody waits for the thread that ends the process.
[[noreturn]] void exit_in_a_thread() {
  EndingThread(
      "the test", [] { std::exit(0); }, [] { std::_Exit(8); })
      .join();
  std::_Exit(7);
}

/// A thread that does not end is waited for during five seconds.
[[noreturn]] void exit_beside_a_stuck_thread() {
  std::atexit([] { std::_Exit(0); });
  EndingThread(
      "the test", [] { is_asked.wait(false); }, [] {})
      .detach();
  ::alarm(60);
  std::exit(3);
}

[[noreturn]] void exit_behind_threads() {
  std::atexit([] { std::_Exit(0); });
  EndingThread joined(
      "the test", [] {}, [] { std::_Exit(8); });
  joined.join();
  std::atomic<bool> has_run = false;
  EndingThread detached("the test", [&] { has_run = true; });
  detached.detach();
  while (!has_run) std::this_thread::yield();
  std::exit(7);
}

TEST(EndingThreadDeathTest, ExitWaitsForAThread) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_beside_a_thread(), ::testing::ExitedWithCode(0), "");
}

TEST(EndingThreadDeathTest, ExitDoesNotWaitForeverForAThreadThatIsStuck) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_beside_a_stuck_thread(), ::testing::ExitedWithCode(0), "");
}

TEST(EndingThreadDeathTest, AThreadMayCallExit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_in_a_thread(), ::testing::ExitedWithCode(0), "");
}

TEST(EndingThreadDeathTest, WhatHasEndedIsNotAsked) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_behind_threads(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tessera::internal
