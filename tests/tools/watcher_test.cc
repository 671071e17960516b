#include "tessera/core/launch/watcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tessera/tests/tools/launched_job.h"

namespace tessera::internal {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

/// Descriptors of the processes whose "pid N" `job` prints, once there are `count` of them.
std::vector<FileDescriptor> watch_printed(LaunchedJob& job, size_t count) {
  const auto deadline = std::chrono::steady_clock::now() + kTooLong;
  while (std::chrono::steady_clock::now() < deadline &&
         (job.printed_pids().size() < count || job.out().back() != '\n')) {
    job.read_for_a_moment();
  }
  std::vector<FileDescriptor> processes;
  for (const pid_t pid : job.printed_pids()) processes.push_back(watch_process(pid));
  EXPECT_EQ(processes.size(), count);
  return processes;
}

bool becomes_empty(const testing::TemporaryDirectory& directory) {
  const auto deadline = std::chrono::steady_clock::now() + kTooLong;
  while (!directory.is_empty()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

/// -1 if none appears. A worker may run before the watcher has got as far as its name.
pid_t find_watcher(pid_t launcher) {
  const auto deadline = std::chrono::steady_clock::now() + kTooLong;
  while (std::chrono::steady_clock::now() < deadline) {
    for (const pid_t pid : process_tree(launcher)) {
      if (look_up_process(pid).name == "tessera-watch") return pid;
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  return -1;
}

TEST(WatcherTest, AKilledLauncherLeavesNoWorkerNoChildAndNoDirectory) {
  testing::TemporaryDirectory tmp;
  // Each rank has a child of its own, and neither heeds SIGTERM.
  LaunchedJob job({"--nproc-per-node=3", "/bin/sh", "-c",
                   "trap '' TERM HUP; (while :; do sleep 0.05; done) & echo pid $!; echo pid $$; "
                   "while :; do sleep 0.05; done"},
                  {{"TMPDIR", tmp.path()}});
  const auto processes = watch_printed(job, 6);
  for (const FileDescriptor& process : processes) EXPECT_TRUE(process.is_open());
  EXPECT_FALSE(tmp.is_empty());
  job.signal(SIGKILL);
  EXPECT_TRUE(all_end(processes, kTooLong));
  EXPECT_TRUE(becomes_empty(tmp));
  // Nobody holds the launcher's output: what reads it comes to an end too.
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
}

TEST(WatcherTest, ControlAProcessThatLeftItsGroupIsSeenToSurvive) {
  LaunchedJob job({"/bin/sh", "-c",
                   "setsid sh -c 'echo pid $$; exec sleep 1000 >/dev/null 2>&1' & sleep 1000"});
  const auto processes = watch_printed(job, 1);
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_FALSE(all_end(processes, milliseconds(300)));
  kill(job.printed_pids().at(0), SIGKILL);
  EXPECT_TRUE(all_end(processes, kTooLong));
}

TEST(WatcherTest, AWatcherThatIsKilledIsReportedAndTheDirectoryStillRemoved) {
  testing::TemporaryDirectory tmp;
  LaunchedJob job({"/bin/sh", "-c", "echo ready; exec sleep 1000"}, {{"TMPDIR", tmp.path()}});
  ASSERT_TRUE(job.read_until("ready"));
  const pid_t watcher = find_watcher(job.pid());
  ASSERT_GT(watcher, 0);
  kill(watcher, SIGKILL);
  EXPECT_TRUE(job.read_until("the watcher process was killed"));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_TRUE(tmp.is_empty());
}

TEST(WatcherTest, TheSignalsOfATerminalDoNotEndIt) {
  testing::TemporaryDirectory tmp;
  std::filesystem::create_directory(tmp.path() + "/store");
  auto watcher = Watcher::start(tmp.path() + "/store");
  ASSERT_TRUE(watcher.ok()) << watcher.status();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP}) {
    kill((*watcher)->pid(), signal);
  }
  std::vector<FileDescriptor> process;
  process.push_back(watch_process((*watcher)->pid()));
  EXPECT_FALSE(all_end(process, milliseconds(0)));
  EXPECT_FALSE(tmp.is_empty());
  (*watcher)->finish();
  EXPECT_TRUE(all_end(process, milliseconds(0)));
  EXPECT_TRUE(tmp.is_empty());
}

TEST(WatcherTest, AForgottenGroupIsLeftAlone) {
  testing::TemporaryDirectory tmp;
  const auto start_group = [] {
    const pid_t pid = fork();
    if (pid == 0) {
      setpgid(0, 0);
      while (true) pause();
    }
    setpgid(pid, pid);
    return pid;
  };
  const pid_t kept = start_group(), forgotten = start_group();
  auto watcher = Watcher::start(tmp.path() + "/store");
  ASSERT_TRUE(watcher.ok()) << watcher.status();
  (*watcher)->add(kept);
  (*watcher)->add(forgotten);
  (*watcher)->forget(forgotten);
  (*watcher)->finish();
  int status = 0;
  EXPECT_EQ(waitpid(kept, &status, 0), kept);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_EQ(waitpid(forgotten, &status, WNOHANG), 0);
  kill(forgotten, SIGKILL);
  waitpid(forgotten, &status, 0);
}

}  // namespace
}  // namespace tessera::internal
