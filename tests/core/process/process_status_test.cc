#include "tessera/core/process/process_status.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

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

}  // namespace
}  // namespace tessera::internal
