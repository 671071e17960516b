// One-sided reads: their values, and the operations allowed during them.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/memory/copy_kernels.h"
#include "tessera/errors.h"
#include "tessera/process_group.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/core/comm/groups/window_suite.h"
#include "tessera/tests/faults/killing_group.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using testing::check_window_reads;
using ::testing::HasSubstr;
using testing::KillingGroup;
using testing::RankProcessBody;
using testing::RankProcesses;
using testing::RankProcessOptions;
using testing::read_new;
using testing::run_ranks;
using testing::window_content;
using testing::WindowBackend;
using Lane = ProcessGroupOptions::Lane;

WindowBackend over_lane(Lane lane, const std::string& backend) {
  return {.world_sizes = {1, 2, 3, 5}, .run = [=](int size, const auto& body) {
            run_ranks(size, body, {.backend = backend, .lane = lane});
          }};
}

TEST(Windows, ReadWhatEveryRankWrote) {
  for (const Lane lane : {Lane::kInline, Lane::kThread}) {
    for (const char* backend : {"auto", "shm"}) test_window_reads(over_lane(lane, backend));
  }
}

TEST(Windows, ReadsThatAreStartedTogether) {
  test_reads_started_together(over_lane(Lane::kInline, "auto"));
}
TEST(Windows, ARankMayReadItsOwnMemoryToWhereItOverlaps) {
  test_own_reads_that_overlap(over_lane(Lane::kInline, "auto"));
}
TEST(Windows, AnOwnerThatTakesNoPartIsRead) {
  test_owner_that_takes_no_part(over_lane(Lane::kInline, "auto"));
}
TEST(Windows, ThreadsOfARankReadAtOnceWhileCollectivesRun) {
  test_readers_beside_collectives(over_lane(Lane::kInline, "auto"));
}
TEST(Windows, WordsTellWhenTheRestMayBeRead) { test_words(over_lane(Lane::kInline, "auto")); }
TEST(Windows, RanksAreThoseOfTheGroup) {
  test_ranks_of_the_group(over_lane(Lane::kInline, "auto"));
}

/// A buffer so large that even two thirds of it are copied with non-temporal stores.
int64_t numel_beyond_the_cache(int ranks) {
  int64_t bytes = 1;
  while (!streaming_pays(bytes, ranks)) bytes *= 2;
  return 2 * bytes / static_cast<int64_t>(sizeof(float)) + 5;
}

TEST(Windows, ReadPastTheCacheWhatEveryRankWrote) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> group) {
    check_window_reads(*group, group->allocate(numel_beyond_the_cache(3), at::kFloat));
  });
}

// The comparison above must notice a read of another rank, of a neighbouring element and of an
// earlier round.
TEST(Windows, NegativeControlsOfTheContent) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kByte}) {
    const at::Tensor right = window_content(1, 1, 1000, dtype);
    EXPECT_FALSE(at::equal(right, window_content(2, 1, 1000, dtype)));
    EXPECT_FALSE(at::equal(right, window_content(1, 0, 1000, dtype)));
    EXPECT_FALSE(at::equal(right.narrow(0, 0, 999), right.narrow(0, 1, 999)));
  }
}

// ---- processes --------------------------------------------------------------------------------

/// Whether a process has ended, reaped by its parent or not.
bool has_ended(int64_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(file, line)) return true;
  return line.compare(line.rfind(')') + 2, 1, "Z") == 0;
}

const RankProcessBody kReads("reads_windows", [] {
  auto world = std::make_shared<KillingGroup>(init_process_group());
  constexpr int64_t kNumel = 300001;
  const at::Tensor own = world->allocate(kNumel, at::kFloat);
  check_window_reads(*world, own);
  const auto window = world->make_window(own, "the same buffer again");
  own.fill_(world->rank());
  at::Tensor pids = at::zeros({world->size()}, at::kLong);
  world->all_gather(pids, at::full({1}, int64_t{::getpid()}, at::kLong), "pids")->wait();
  if (world->rank() == 1) {
    if (std::getenv("TEST_DIES") != nullptr) world->die_in("unit 3");
    const at::Tensor to = at::empty({1});
    window->read(0, 0, to, "unit 3");
    return;
  }
  while (!has_ended(pids[1].item<int64_t>())) std::this_thread::yield();
  if (read_new(*window, 1, 0, kNumel, at::kFloat).sum().item<float>() != kNumel) {
    throw std::runtime_error("wrong values of a process that ended");
  }
  std::string cause;
  try {
    world->barrier("without rank 1");
  } catch (const CommError& error) {
    cause = error.cause();
  }
  try {
    read_new(*window, 1, 0, 1, at::kFloat);
  } catch (const CommError& error) {
    if (error.cause() == cause) throw;
  }
  throw std::runtime_error("no error, or two");
});

TEST(Windows, ProcessesReadEachOtherAndWhatOneLeftBehind) {
  const auto results = testing::run_rank_processes(3, "reads_windows");
  EXPECT_EQ(results[1].exit_code, 0) << results[1].output;
  for (const int rank : {0, 2}) {
    EXPECT_THAT(results[rank].output, HasSubstr("[comm] read 'unit' on group 'world', rank "));
    EXPECT_THAT(results[rank].output, HasSubstr("rank 1 left the group after "));
  }
}

TEST(Windows, AProcessKilledInARead) {
  RankProcessOptions options;
  options.environment = {{"TEST_DIES", "1"}};
  RankProcesses ranks(3, "reads_windows", options);
  const std::string text = absl::StrCat("rank 1 (pid ", ranks.pid(1), ") died");
  const auto results = ranks.wait();
  EXPECT_EQ(results[1].exit_code, 128 + SIGKILL);
  for (const int rank : {0, 2}) EXPECT_THAT(results[rank].output, HasSubstr(text));
}

}  // namespace
}  // namespace tessera::internal
