// One-sided reads: what they give, and who may do what meanwhile.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/memory/copy_kernels.h"
#include "tessera/errors.h"
#include "tessera/process_group.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/faults/killing_group.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::KillingGroup;
using testing::RankProcessBody;
using testing::RankProcesses;
using testing::RankProcessOptions;
using testing::run_ranks;
using testing::run_ranks_expecting_errors;
using Lane = ProcessGroupOptions::Lane;

/// What rank `rank` holds in round `round`: no two neighbours, ranks or rounds alike.
at::Tensor content(int rank, int round, int64_t numel, at::ScalarType dtype) {
  const at::Tensor numbers = at::arange(numel, at::kLong) * 7 + rank * 31 + round * 101;
  return numbers.remainder(dtype == at::kByte || dtype == at::kBFloat16 ? 251 : 1000003).to(dtype);
}

at::Tensor read_new(Window& window, int rank, int64_t begin, int64_t numel, at::ScalarType dtype) {
  at::Tensor to = at::empty({numel}, dtype);
  window.read(rank, begin, to, "unit");
  return to;
}

void check_reads(ProcessGroup& group, const at::Tensor& own) {
  const int64_t numel = own.numel();
  const auto dtype = own.scalar_type();
  const auto window = group.make_window(own, absl::StrCat("window of ", numel));
  for (int round = 0; round < 2; ++round) {
    own.copy_(content(group.rank(), round, numel, dtype));
    group.barrier("written");
    for (int rank = 0; rank < group.size(); ++rank) {
      const at::Tensor wanted = content(rank, round, numel, dtype);
      ASSERT_TRUE(at::equal(read_new(*window, rank, 0, numel, dtype), wanted));
      const int64_t begin = numel / 3;
      const at::Tensor shared = group.allocate(numel - begin, dtype);
      window->read(rank, begin, shared);
      ASSERT_TRUE(at::equal(shared, wanted.narrow(0, begin, numel - begin)));
      read_new(*window, rank, numel, 0, dtype);
    }
    group.barrier("read");
  }
}

class Windows : public ::testing::TestWithParam<int> {};

TEST_P(Windows, ReadWhatEveryRankWrote) {
  for (const Lane lane : {Lane::kInline, Lane::kThread}) {
    for (const char* backend : {"auto", "shm"}) {
      run_ranks(GetParam(),
                [](std::shared_ptr<ProcessGroup> group) {
                  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kByte}) {
                    for (const int64_t numel : {0, 1, 7, 1000, 30011}) {
                      check_reads(*group, group->allocate(numel, dtype));
                      // A view, at another place on every rank.
                      const at::Tensor whole = group->allocate(numel + 10, dtype);
                      check_reads(*group, whole.narrow(0, group->rank() + 1, numel));
                    }
                  }
                },
                {.backend = backend, .lane = lane});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Windows, ::testing::Values(1, 2, 3, 5));

/// A buffer of which even two thirds are copied past the caches.
int64_t numel_beyond_the_cache(int ranks) {
  int64_t bytes = 1;
  while (!streaming_pays(bytes, ranks)) bytes *= 2;
  return 2 * bytes / static_cast<int64_t>(sizeof(float)) + 5;
}

TEST(Windows, ReadPastTheCacheWhatEveryRankWrote) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> group) {
    check_reads(*group, group->allocate(numel_beyond_the_cache(3), at::kFloat));
  });
}

TEST(Windows, ARankMayReadItsOwnMemoryToWhereItOverlaps) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    for (const int64_t numel : {int64_t{1000}, numel_beyond_the_cache(2)}) {
      const at::Tensor wanted = content(group->rank(), 0, numel, at::kFloat);
      const at::Tensor own = group->allocate(numel, at::kFloat);
      const auto window = group->make_window(own, absl::StrCat("window of ", numel));
      for (const int64_t shift : {1, 3, 500}) {
        own.copy_(wanted);
        window->read(group->rank(), 0, own.narrow(0, shift, numel - shift));
        EXPECT_TRUE(
            at::equal(own.narrow(0, shift, numel - shift), wanted.narrow(0, 0, numel - shift)));
        own.copy_(wanted);
        window->read(group->rank(), shift, own.narrow(0, 0, numel - shift));
        EXPECT_TRUE(
            at::equal(own.narrow(0, 0, numel - shift), wanted.narrow(0, shift, numel - shift)));
      }
      group->barrier("read");
    }
  });
}

// The comparison above must notice a read of another rank, of an element beside and of a time
// before.
TEST(Windows, NegativeControlsOfTheContent) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kByte}) {
    const at::Tensor right = content(1, 1, 1000, dtype);
    EXPECT_FALSE(at::equal(right, content(2, 1, 1000, dtype)));
    EXPECT_FALSE(at::equal(right, content(1, 0, 1000, dtype)));
    EXPECT_FALSE(at::equal(right.narrow(0, 0, 999), right.narrow(0, 1, 999)));
  }
}

TEST(Windows, AnOwnerThatTakesNoPartIsRead) {
  std::promise<void> has_read;
  auto gate = has_read.get_future().share();
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
    const at::Tensor own = group->allocate(100, at::kFloat);
    own.fill_(group->rank() + 1);
    const auto window = group->make_window(own, "w");
    if (group->rank() != 0) return gate.wait();
    EXPECT_EQ(read_new(*window, 1, 0, 100, at::kFloat).sum().item<float>(), 200);
    EXPECT_EQ(read_new(*window, 2, 99, 1, at::kFloat).item<float>(), 3);
    has_read.set_value();
  });
}

TEST(Windows, ThreadsOfARankReadAtOnceWhileCollectivesRun) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> group) {
    constexpr int64_t kNumel = 5003;
    const at::Tensor own = group->allocate(kNumel, at::kFloat);
    own.copy_(content(group->rank(), 0, kNumel, at::kFloat));
    const auto window = group->make_window(own, "w");
    group->barrier("written");
    std::vector<std::thread> readers;
    std::vector<int> wrong(3);
    for (int i = 0; i < 3; ++i) {
      readers.emplace_back([&, i] {
        for (int round = 0; round < 50; ++round) {
          const int rank = (i + round) % 3;
          wrong[i] += !at::equal(read_new(*window, rank, 0, kNumel, at::kFloat),
                                 content(rank, 0, kNumel, at::kFloat));
        }
      });
    }
    for (int i = 0; i < 50; ++i) group->barrier();
    for (auto& reader : readers) reader.join();
    EXPECT_EQ(wrong, std::vector<int>({0, 0, 0}));
    group->barrier("read");
  });
}

// Who has loaded a word sees what its owner wrote before.
TEST(Windows, WordsTellWhenTheRestMayBeRead) {
  for (const int size : {1, 3}) {
    run_ranks(size, [](std::shared_ptr<ProcessGroup> group) {
      const int rank = group->rank();
      const int size = group->size();
      const at::Tensor words = group->allocate(2, at::kLong);
      words.zero_();
      const at::Tensor own = group->allocate(1000, at::kFloat);
      const auto epochs = group->make_window(words, "epochs");
      const auto window = group->make_window(own, "w");
      for (int64_t epoch = 1; epoch <= 20; ++epoch) {
        own.copy_(content(rank, static_cast<int>(epoch), 1000, at::kFloat));
        epochs->store(1, epoch);
        const int next = (rank + 1) % size;
        while (epochs->load(next, 1) < epoch) std::this_thread::yield();
        EXPECT_TRUE(at::equal(read_new(*window, next, 0, 1000, at::kFloat),
                              content(next, static_cast<int>(epoch), 1000, at::kFloat)));
        epochs->store(0, epoch);  // has read
        while (epochs->load((rank + size - 1) % size, 0) < epoch) std::this_thread::yield();
      }
      EXPECT_EQ(epochs->load(rank, 1), 20);
      group->barrier();
    });
  }
}

TEST(Windows, RanksAreThoseOfTheGroup) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    auto pair = world->subgroup({0, 2}, "pair");
    if (pair != nullptr) {
      const at::Tensor own = pair->allocate(1, at::kLong);
      own.fill_(world->rank());
      const auto window = pair->make_window(own, "w");
      EXPECT_EQ(read_new(*window, 1, 0, 1, at::kLong).item<int64_t>(), 2);
      pair->barrier();
    }
  });
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
  check_reads(*world, own);
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
