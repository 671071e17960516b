#include "tessera/core/launch/kill_reasons.h"

#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// A made-up tree, in which the process is in the control group /pod/job of version 2.
class KillReasonsTest : public ::testing::Test {
 protected:
  KillReasonsTest() {
    write("proc/self/cgroup", "0::/pod/job\n");
    write("proc/vmstat", "nr_free_pages 7\noom_kill 4\n");
    write(kEvents, "low 0\nmax 9\noom 3\noom_kill 3\noom_group_kill 0\n");
  }

  void write(const std::string& name, const std::string& content) const {
    const std::filesystem::path path = root_.path() + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  KillReasons reasons() const { return KillReasons(root_.path()); }

  static constexpr const char* kEvents = "sys/fs/cgroup/pod/job/memory.events";
  const testing::TemporaryDirectory root_;
};

TEST_F(KillReasonsTest, AreNoneWhereNothingHasGrown) {
  rlimit time;
  getrlimit(RLIMIT_CPU, &time);
  if (time.rlim_max != RLIM_INFINITY) GTEST_SKIP() << "this process has a limit of CPU time";
  EXPECT_EQ(reasons().hint(SIGKILL), "");
}

TEST_F(KillReasonsTest, AreTheKillsOfTheGroupBeforeThoseOfTheHost) {
  const KillReasons reasons = this->reasons();
  write("proc/vmstat", "nr_free_pages 7\noom_kill 6\n");
  EXPECT_THAT(reasons.hint(SIGKILL),
              AllOf(HasSubstr("the kernel has killed 2 processes of this host for lack of memory"),
                    HasSubstr("use less memory or fewer ranks"), Not(HasSubstr("limit"))));
  write(kEvents, "low 0\nmax 10\noom 4\noom_kill 4\noom_group_kill 0\n");
  EXPECT_THAT(reasons.hint(SIGKILL),
              AllOf(HasSubstr("1 process of this job's control group for lack of memory"),
                    HasSubstr(kEvents), HasSubstr("raise the container's limit")));
  EXPECT_EQ(reasons.hint(SIGSEGV), "") << "that is no kill";
}

TEST_F(KillReasonsTest, AreTheKillsOfAGroupOfVersion1) {
  write("proc/self/cgroup", "5:memory:/pod\n");
  write("sys/fs/cgroup/memory/pod/memory.oom_control", "under_oom 0\noom_kill 0\n");
  const KillReasons reasons = this->reasons();
  write("sys/fs/cgroup/memory/pod/memory.oom_control", "under_oom 0\noom_kill 1\n");
  EXPECT_THAT(reasons.hint(SIGKILL), HasSubstr("1 process of this job's control group"));
}

}  // namespace
}  // namespace tessera::internal
