// One-sided reads over the fake MPI: the behaviour of every backend's windows, their traffic, the
// lifetime of memory, and what ends reads.
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/core/comm/groups/window_suite.h"
#include "tessera/tests/core/comm/mpi/mpi_ranks.h"
#include "tessera/tests/support/fake_mpi/fake_mpi.h"
#include "tessera/tests/support/forked_child.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::message_of;
using testing::read_new;
using testing::run_mpi_ranks;
using testing::run_mpi_ranks_expecting_errors;
using testing::WindowBackend;

constexpr auto kBrief = std::chrono::milliseconds(1000);

WindowBackend over_mpi() {
  return {
      .world_sizes = {1, 2, 3, 4},
      .run = [](int size, const auto& body) { run_mpi_ranks(size, body); },
      .run_expecting_errors =
          [](int size, const auto& body) { return run_mpi_ranks_expecting_errors(size, body); }};
}

TEST(MpiWindows, ReadWhatEveryRankWrote) { test_window_reads(over_mpi()); }
TEST(MpiWindows, ReadsThatAreStartedTogether) { test_reads_started_together(over_mpi()); }
TEST(MpiWindows, OwnReadsThatOverlap) { test_own_reads_that_overlap(over_mpi()); }
TEST(MpiWindows, AnOwnerThatTakesNoPart) { test_owner_that_takes_no_part(over_mpi()); }
TEST(MpiWindows, ReadersBesideCollectives) { test_readers_beside_collectives(over_mpi()); }
TEST(MpiWindows, WordsTellWhenTheRestMayBeRead) { test_words(over_mpi()); }
TEST(MpiWindows, RanksAreThoseOfTheGroup) { test_ranks_of_the_group(over_mpi()); }

TEST(MpiWindowFailures, DifferencesAreNamed) { test_window_differences(over_mpi()); }
TEST(MpiWindowFailures, MisuseHarmsNothing) { test_window_misuse(over_mpi()); }
TEST(MpiWindowFailures, AFailureEndsReads) { test_failures_end_reads(over_mpi()); }
TEST(MpiWindowFailures, OutliveGroups) { test_windows_outlive_groups(over_mpi()); }
TEST(MpiWindowFailures, DoNotKeepRanks) { test_windows_do_not_keep_ranks(over_mpi()); }

TEST(MpiWindows, MemoryMayLieAnywhere) {
  run_mpi_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    const auto window = group->make_window(at::full({1000}, group->rank() + 1.0f), "private");
    EXPECT_EQ(read_new(*window, 0, 0, 1000).sum().item<float>(), 1000);
    EXPECT_EQ(read_new(*window, 1, 0, 1000).sum().item<float>(), 2000);
    group->barrier();
  });
}

TEST(MpiWindows, OwnersSendWhatIsReadAndNothingElse) {
  for (const int size : {2, 3, 4}) {
    const int64_t before = testing::fake_data_bytes();
    run_mpi_ranks(size, [](std::shared_ptr<ProcessGroup> group) {
      const int64_t own_before = testing::fake_data_bytes_of(group->rank());
      group->barrier();
      const at::Tensor own = group->allocate(1001, at::kFloat).fill_(1);
      const auto window = group->make_window(own, "w");
      for (int rank = 0; rank < group->size(); ++rank) {
        read_new(*window, rank, 1, 1000);
        read_new(*window, rank, 3, 128);  // is sent inside the answers
      }
      group->barrier();
      EXPECT_EQ(testing::fake_data_bytes_of(group->rank()) - own_before,
                4000 * (group->size() - 1));
    });
    EXPECT_EQ(testing::fake_data_bytes() - before, int64_t{4000} * size * (size - 1));
  }
}

/// Note [Reads in parts]: parts and messages of all lengths, and the bytes under way at a time.
TEST(MpiWindows, LargeReadsComeInPartsOfWhichFewAreUnderWay) {
  constexpr int64_t kMessage = int64_t{60} << 10, kPart = 4 * kMessage;
  constexpr int64_t kNumel = 20 * kPart + 7;
  testing::take_fake_most_bytes_under_way();
  run_mpi_ranks(3, [](std::shared_ptr<ProcessGroup> group) {
    const at::Tensor own = group->allocate(kNumel, at::kByte);
    own.copy_(testing::window_content(group->rank(), 0, kNumel, at::kByte));
    const auto window = group->make_window(own, "w");
    std::vector<at::Tensor> contents;
    for (int rank = 0; rank < group->size(); ++rank) {
      contents.push_back(testing::window_content(rank, 0, kNumel, at::kByte));
    }
    std::vector<std::shared_ptr<Work>> reads;
    std::vector<at::Tensor> read, wanted;
    for (const int64_t numel : {int64_t{1}, int64_t{513}, kMessage - 1, kMessage, kMessage + 1,
                                kPart - 1, kPart, kPart + 1, 3 * kPart + kMessage + 3, kNumel}) {
      for (int rank = 0; rank < group->size(); ++rank) {
        const int64_t begin = (kNumel - numel) / 3;
        read.push_back(at::zeros({numel}, at::kByte));
        reads.push_back(window->start_read(rank, begin, read.back(), "w", Window::kUnversioned));
        wanted.push_back(contents[static_cast<size_t>(rank)].narrow(0, begin, numel));
      }
    }
    for (size_t i = 0; i < reads.size(); ++i) {
      reads[i]->wait();
      EXPECT_TRUE(at::equal(read[i], wanted[i])) << i;
    }
    group->barrier();
  });
  // Three parts to each of two readers from each of three owners.
  EXPECT_LE(testing::take_fake_most_bytes_under_way(), 3 * 2 * 3 * kPart);
}

TEST(MpiWindows, KeepTheMemoryUntilAllRanksHaveDestroyedTheirs) {
  std::atomic<bool> is_closed{false};
  std::atomic<bool> has_read{false};
  run_mpi_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
    at::Tensor own = group->allocate(1000, at::kFloat).fill_(group->rank());
    auto window = group->make_window(own, "w");
    if (group->rank() == 1) {
      window.reset();
      is_closed = true;
      while (!has_read) std::this_thread::yield();
      while (own.use_count() > 1) std::this_thread::yield();  // when rank 0 has destroyed its own
    } else {
      while (!is_closed) std::this_thread::yield();
      EXPECT_EQ(read_new(*window, 1, 0, 1000).sum().item<float>(), 1000);
      has_read = true;
      window.reset();
    }
    group->barrier();
  });
}

TEST(MpiWindows, ManyOfOneRankAndOfSubgroups) {
  run_mpi_ranks(4, [](std::shared_ptr<ProcessGroup> world) {
    const auto half = split(*world, {0, 1, 0, 1}, "half");
    std::vector<std::unique_ptr<Window>> windows;
    for (int i = 0; i < 20; ++i) {
      ProcessGroup& group = i % 2 == 0 ? *world : *half;
      const at::Tensor own = group.allocate(200, at::kFloat).fill_(100 * i + world->rank());
      windows.push_back(group.make_window(own, "w"));
    }
    for (int i = 0; i < 20; ++i) {
      const int rank = (world->rank() + 1) % (i % 2 == 0 ? 4 : 2);
      const int in_world = i % 2 == 0 ? rank : 2 * rank + world->rank() % 2;
      EXPECT_EQ(read_new(*windows[static_cast<size_t>(i)], rank, 199, 1).item<float>(),
                static_cast<float>(100 * i + in_world));
    }
    world->barrier();
  });
}

// ---- what ends reads --------------------------------------------------------------------------

TEST(MpiWindowFailures, AnOwnerThatDoesNotAnswerIsNamed) {
  for (const bool loads : {false, true}) {
    std::atomic<int> ended{0};
    const auto errors = run_mpi_ranks_expecting_errors(
        3,
        [&](std::shared_ptr<ProcessGroup> group) {
          const at::Tensor own = group->allocate(1000, at::kLong).fill_(1);
          std::unique_ptr<Window> window;
          const std::string problem = message_of([&] {
            window = group->make_window(own, "w");
            group->barrier();
          });
          if (problem != testing::kNothingThrown) {
            ++ended;
            throw std::runtime_error(problem);
          }
          if (group->rank() == 1) {
            while (ended < 1) std::this_thread::yield();
            testing::lose_sends_of(-1);
            while (ended < 2) std::this_thread::yield();
            return;
          }
          if (group->rank() == 0) {
            testing::lose_sends_of(1);
            const std::string error = message_of([&] {
              loads ? static_cast<void>(window->load(1, 7))
                    : static_cast<void>(read_new(*window, 1, 0, 1000, at::kLong));
            });
            ++ended;
            throw std::runtime_error(error);
          }
          while (ended < 1) std::this_thread::yield();
          // The others learn of it.
          const std::string error = message_of([&] {
            while (true) read_new(*window, 0, 0, 1, at::kLong);
          });
          ++ended;
          throw std::runtime_error(error);
        },
        kBrief);
    const std::string cause =
        absl::StrCat(" waited ", kBrief.count(), " ms for rank 1 to answer a ",
                     loads ? "load" : "read of 'unit'");
    EXPECT_THAT(errors[0], HasSubstr(cause));
    EXPECT_THAT(errors[0], HasSubstr(loads ? "[comm] load on group 'world', rank 0"
                                           : "[comm] read 'unit' on group 'world', rank 0"));
    EXPECT_THAT(errors[2], HasSubstr(cause));
  }
}

TEST(MpiWindowFailures, AnAbortEndsAReadThatWaits) {
  std::atomic<bool> is_over{false};
  const auto errors = run_mpi_ranks_expecting_errors(3, [&](std::shared_ptr<ProcessGroup> group) {
    const at::Tensor own = group->allocate(1000, at::kFloat).fill_(1);
    const auto window = group->make_window(own, "w");
    group->barrier();
    if (group->rank() == 1) {
      while (!is_over) std::this_thread::yield();
      testing::lose_sends_of(-1);
      return;
    }
    if (group->rank() == 2) {
      group->recv(at::zeros({1}), 0, "reads");
      return group->abort("the user's reason");
    }
    testing::lose_sends_of(1);
    const auto read = window->start_read(1, 0, at::empty({1000}), "unit");
    group->send(at::zeros({1}), 2, "reads");
    const std::string error = message_of([&] { read->wait(); });
    is_over = true;
    throw std::runtime_error(error);
  });
  EXPECT_THAT(errors[0],
              HasSubstr("[comm] read 'unit' on group 'world', rank 0: the user's reason"));
}

TEST(MpiWindowFailures, AForkIsNoReader) {
  run_mpi_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    const at::Tensor own = group->allocate(10, at::kLong).fill_(1);
    const auto window = group->make_window(own, "w");
    group->barrier();
    if (group->rank() == 0) {
      const auto child = testing::run_in_fork([&] {
        return message_of([&] { read_new(*window, 1, 0, 10, at::kLong); }) +
               message_of([&] { window->load(0, 0); }) + message_of([&] { window->store(0, 1); });
      });
      EXPECT_THAT(child.text, HasSubstr("[comm] read 'unit' on group 'world', rank 0: this process "
                                        "is a fork of rank 0"));
      EXPECT_THAT(child.text, HasSubstr("[comm] load on group 'world', rank 0: this process"));
      EXPECT_THAT(child.text, HasSubstr("[comm] store on group 'world', rank 0: this process"));
    }
    group->barrier();
    EXPECT_EQ(window->load(1 - group->rank(), 3), 1);
    group->barrier();
  });
}

}  // namespace
}  // namespace tessera::internal
