#include "tessera/stop_request.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <c10/util/Exception.h>

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

int seen = 0;
void count(int /*signal*/) { ++seen; }

TEST(StopRequest, NotesASignalWhileItLivesAndPutsBackWhatWasThere) {
  struct sigaction mine = {};
  mine.sa_handler = count;
  struct sigaction earlier = {};
  ASSERT_EQ(::sigaction(SIGTERM, &mine, &earlier), 0);
  seen = 0;
  {
    const StopRequest stop;
    EXPECT_FALSE(stop.is_requested());
    std::raise(SIGTERM);
    EXPECT_TRUE(stop.is_requested());
    {
      const StopRequest another({SIGTERM, SIGUSR1});
      EXPECT_TRUE(another.is_requested());
    }
    std::raise(SIGTERM);
    std::raise(SIGUSR1);
    EXPECT_EQ(seen, 0);
  }
  std::raise(SIGTERM);
  EXPECT_EQ(seen, 1);
  EXPECT_FALSE(StopRequest().is_requested());
  ::sigaction(SIGTERM, &earlier, nullptr);
}

TEST(StopRequest, HearsOfASignalThatTheProcessWasStartedWithBlocked) {
  sigset_t term, before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &term, &before);
  {
    const StopRequest stop;
    std::raise(SIGTERM);
    EXPECT_TRUE(stop.is_requested());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(StopRequest, RefusesASignalThatCannotBeCaughtAndChangesNothing) {
  struct sigaction before = {};
  ::sigaction(SIGTERM, nullptr, &before);
  EXPECT_THAT(
      ([] {
        const StopRequest stop({SIGTERM, SIGKILL});
      }),
      ThrowsMessage<c10::Error>(HasSubstr("got signal 9, expected one that can be caught")));
  struct sigaction after = {};
  ::sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
}

}  // namespace
}  // namespace tessera::internal::testing
