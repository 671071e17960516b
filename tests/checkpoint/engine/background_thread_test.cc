#include "tessera/checkpoint/engine/background_thread.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

std::atomic<bool> is_exiting = false;

/// The work ends only after exit() has begun; a caller that does not wait for it ends earlier.
[[noreturn]] void exit_at_work() {
  auto* const thread = new BackgroundThread;  // never destroyed
  std::atexit([] {
    is_exiting = true;
    is_exiting.notify_all();
  });
  thread->start([] {
    is_exiting.wait(false);
    std::fputs("the work is done\n", stderr);
  });
  std::exit(3);
}

TEST(BackgroundThreadDeathTest, ExitWaitsForTheWorkUnderWay) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_at_work(), ::testing::ExitedWithCode(3), "the work is done");
}

}  // namespace
}  // namespace tessera::internal
