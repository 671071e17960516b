#include "tessera/core/process/thread_without_signals.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/process/ending_thread.h"
#include "tessera/process_group.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/refused_calls.h"

// Threads of ours take no signal that a program wants in one of its own.
namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

sigset_t mask_of_this_thread() {
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return mask;
}

TEST(ThreadWithoutSignals, BlocksAllButWhatItsInstructionsCause) {
  const sigset_t before = mask_of_this_thread();
  sigset_t inside{};
  thread_without_signals("the test", [&inside] { inside = mask_of_this_thread(); }).join();
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD, SIGPIPE, SIGALRM}) {
    EXPECT_TRUE(sigismember(&inside, signal)) << signal;
  }
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    EXPECT_FALSE(sigismember(&inside, signal)) << signal;
  }
  const sigset_t after = mask_of_this_thread();
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal)) << signal;
  }
}

/// Threads of this process but the first that would be given SIGTERM.
std::vector<std::string> threads_that_take_sigterm() {
  std::vector<std::string> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const std::string id = task.path().filename();
    if (id == std::to_string(::getpid())) continue;
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;) {
      if (word != "SigBlk:") continue;
      uint64_t blocked = 0;
      status >> std::hex >> blocked;
      if ((blocked >> (SIGTERM - 1) & 1) == 0) found.push_back(id);
    }
  }
  return found;
}

const testing::RankProcessBody kTakeNone("take no signals", [] {
  ProcessGroupOptions options;
  options.lane = ProcessGroupOptions::Lane::kThread;
  const auto world = init_process_group(options);
  const at::Tensor tensor = at::ones({100});
  world->all_reduce(tensor, ReduceOp::kSum, "work for the lane")->wait();
  EXPECT_THAT(threads_that_take_sigterm(), IsEmpty());
  // The control: a thread of the program does.
  std::atomic<bool> has_begun = false, is_over = false;
  std::thread other([&] {
    has_begun = true;  // until then the C library blocks its signals
    has_begun.notify_all();
    is_over.wait(false);
  });
  has_begun.wait(false);
  EXPECT_EQ(threads_that_take_sigterm().size(), 1U);
  is_over = true;
  is_over.notify_all();
  other.join();
  world->barrier();
});

TEST(ThreadWithoutSignals, ARankHasNoOthers) {
  for (const auto& result : testing::run_rank_processes(3, "take no signals")) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

/// What a thread says that gets `error` for another one.
std::string error_without_threads(int error) {
  std::string text;
  testing::run_with_refused_calls({{SYS_clone, error}, {SYS_clone3, error}}, [&] {
    text = testing::message_of([] { EndingThread("a good purpose", [] {}).join(); });
  });
  return text;
}

TEST(ThreadWithoutSignals, AThreadThatCannotBeStartedIsNamedWithTheLimit) {
  if (!testing::can_refuse_calls()) GTEST_SKIP() << "not run: this kernel has no seccomp filters";
  EXPECT_THAT(
      error_without_threads(EAGAIN),
      AllOf(HasSubstr("[process] thread for a good purpose: got none (Resource temporarily"),
            HasSubstr("raise ulimit -u or the container's pids limit")));
  EXPECT_THAT(error_without_threads(EPERM),
              AllOf(HasSubstr("[process] thread for a good purpose: got none (Operation not"),
                    HasSubstr("allow clone() and clone3() in the seccomp profile")));
}

}  // namespace
}  // namespace tessera::internal
