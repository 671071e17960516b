// An ending process loses its files before others can see that it has ended. A rank that asks for
// its memory in between must say that it died, not that its memory cannot be found.
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/process_group.h"
#include "tessera/tests/support/rank_processes.h"

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kLarge = 1 << 20;

/// Puts this process into the state of an ending one, for as long as its peer needs to look for its
/// files: its first thread has ended, and /proc/PID/fd is gone. Nothing is unwound. Call it from
/// the first thread.
[[noreturn]] void begin_to_end() {
  std::thread([] {
    // This is no wait: the outcome is the same however late its peer looks.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ::_exit(0);
  }).detach();
  while (true) ::syscall(SYS_exit, 0);
}

/// Rank 1 begins a call and ends; rank 0 makes the matching call.
template <typename Begin, typename Call>
void against_an_ending_peer(Begin&& begin, Call&& call) {
  auto world = testing::join();
  const at::Tensor tensor = world->allocate(kLarge, at::kFloat).fill_(1);
  world->barrier("all here");
  if (world->rank() == 1) {
    const auto work = begin(*world, tensor);
    begin_to_end();
  }
  call(*world, tensor);
  world->barrier("after it");
}

const testing::RankProcessBody kMessage("message of an ending process", [] {
  against_an_ending_peer(
      [](ProcessGroup& world, const at::Tensor& tensor) { return world.isend(tensor, 0, "last"); },
      [](ProcessGroup& world, const at::Tensor& tensor) { world.recv(tensor, 1, "last"); });
});

const testing::RankProcessBody kReduction("reduction with an ending process", [] {
  const auto begin = [](ProcessGroup& world, const at::Tensor& tensor) {
    return world.all_reduce(tensor, ReduceOp::kSum, "last");
  };
  against_an_ending_peer(
      begin, [&](ProcessGroup& world, const at::Tensor& tensor) { begin(world, tensor)->wait(); });
});

class EndingPeer : public ::testing::TestWithParam<const char*> {};

TEST_P(EndingPeer, IsNamed) {
  const auto results = testing::run_rank_processes(2, GetParam());
  EXPECT_EQ(results[0].exit_code, 1);
  EXPECT_THAT(results[0].output, HasSubstr(" on group 'world', rank 0: rank 1 (pid "));
  EXPECT_THAT(results[0].output, HasSubstr("died"));
  EXPECT_THAT(results[0].output, Not(HasSubstr("/proc/")));
}

INSTANTIATE_TEST_SUITE_P(Calls, EndingPeer,
                         ::testing::Values("message of an ending process",
                                           "reduction with an ending process"));

}  // namespace
}  // namespace tessera::internal
