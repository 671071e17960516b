#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tessera/tests/tools/launched_job.h"

namespace tessera::internal {
namespace {

/// Two ranks, whose scripts stop at `wait_for NAME` until go_on(NAME).
class LauncherOutputTest : public ::testing::Test {
 protected:
  /// The launcher's stdout and stderr are one pipe, as they are one terminal.
  LaunchedJob run(const std::string& of_rank_0, const std::string& of_rank_1 = "exit 0") {
    // Each is waited for once: a writer that has not closed it yet would be the next one's end.
    for (const char* name : {"one", "two"}) EXPECT_EQ(mkfifo(fifo(name).c_str(), 0600), 0);
    const std::string script = "wait_for() { read -r line < " + fifo("$1") +
                               "; }; if [ $RANK = 0 ]; then " + of_rank_0 + "; else " + of_rank_1 +
                               "; fi";
    return LaunchedJob({"--standalone", "--nproc-per-node", "2", "--", "/bin/sh", "-c", script}, {},
                       "exec 2>&1");
  }

  /// Blocks until the rank waits.
  void go_on(const std::string& name) const { std::ofstream(fifo(name)) << "go on\n"; }

 private:
  std::string fifo(const std::string& name) const { return folder_.path() + "/" + name; }

  const testing::TemporaryDirectory folder_;
};

TEST_F(LauncherOutputTest, APromptIsSeenBeforeTheWorkerGoesOn) {
  LaunchedJob job = run("printf 'name? '; wait_for one; echo Ada; echo more");
  ASSERT_TRUE(job.read_until("[0] name? "));
  go_on("one");
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.out(), "[0] name? Ada\n[0] more\n");
}

TEST_F(LauncherOutputTest, ABarIsSeenBeforeItsLineEnds) {
  LaunchedJob job = run("printf '\\r1/2'; wait_for one; printf '\\r2/2'; wait_for two; echo");
  ASSERT_TRUE(job.read_until("[0] 1/2"));
  go_on("one");
  ASSERT_TRUE(job.read_until("[0] 2/2"));
  go_on("two");
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.out(), "\r[0] 1/2\r[0] 2/2\n");
}

TEST_F(LauncherOutputTest, AnotherRanksLineBeginsOnALineOfItsOwn) {
  LaunchedJob job = run("printf 'name? '; wait_for one; echo Ada", "wait_for two; echo hello >&2");
  ASSERT_TRUE(job.read_until("[0] name? "));
  go_on("two");
  ASSERT_TRUE(job.read_until("hello\n"));
  go_on("one");
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.out(), "[0] name? \n[1] hello\n[0] Ada\n");
}

}  // namespace
}  // namespace tessera::internal
