#include "tessera/core/process/process_status.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

TEST(ProcessStatus, TellsWhatAProcessDoes) {
  ASSERT_TRUE(process_status(::getpid()).has_value());
  EXPECT_EQ(process_status(::getpid())->describe(), "computes");
  EXPECT_FALSE(process_status(-1).has_value());

  const pid_t child = ::fork();
  if (child == 0) {
    while (true) ::pause();
  }
  int status = 0;
  ::kill(child, SIGSTOP);
  ::waitpid(child, &status, WUNTRACED);
  EXPECT_EQ(process_status(child)->describe(), "is stopped (SIGSTOP or a debugger)");
  EXPECT_GE(process_status(child)->start_time, process_status(::getpid())->start_time);
  ::kill(child, SIGKILL);
  siginfo_t ended{};
  ::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT);
  EXPECT_TRUE(process_status(child)->has_ended());
  EXPECT_EQ(process_status(child)->describe(), "");
  ::waitpid(child, &status, 0);
  EXPECT_FALSE(process_status(child).has_value());
}

TEST(ProcessStatus, ThreadsAreFoundByName) {
  EXPECT_FALSE(has_thread(::getpid(), "tessera-test"));
  std::atomic<bool> is_seen = false;
  std::atomic<bool> is_named = false;
  std::thread thread([&] {
    ::pthread_setname_np(::pthread_self(), "tessera-test");
    is_named = true;
    is_named.notify_one();
    is_seen.wait(false);
  });
  is_named.wait(false);
  EXPECT_TRUE(has_thread(::getpid(), "tessera-test"));
  EXPECT_FALSE(has_thread(::getpid(), "tessera"));
  is_seen = true;
  is_seen.notify_one();
  thread.join();
  EXPECT_FALSE(has_thread(-1, "tessera-test"));
}

}  // namespace
}  // namespace tessera::internal
