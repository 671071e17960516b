// Windows of ranks on several hosts, whose memory the fake MPI reads between hosts, and their
// traffic: Note [One copy for a host].
#include <latch>
#include <string>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/core/comm/groups/window_suite.h"
#include "tessera/tests/core/comm/hosts/mpi_hosts.h"
#include "tessera/tests/support/fake_mpi/fake_mpi.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_hosts.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::hosts_in_order;
using testing::message_of;

testing::WindowBackend over_hosts() {
  return {.world_sizes = {4, 6}, .run = [](int size, const auto& body) {
            testing::run_mpi_hosts(hosts_in_order(2, size / 2), body);
          }};
}

TEST(MpiWindowsOfHosts, ReadWhatEveryRankWrote) { test_window_reads(over_hosts()); }

TEST(MpiWindowsOfHosts, ReadsThatAreStartedTogether) { test_reads_started_together(over_hosts()); }

/// Returns the bytes that all hosts send while every rank reads all `numel` elements of every rank,
/// once per version.
int64_t sent_by_reads(const std::vector<int>& host_of_rank, int64_t numel, bool has_version) {
  constexpr int kVersions = 3;
  const int64_t before = testing::fake_data_bytes();
  testing::run_mpi_hosts(host_of_rank, [&](std::shared_ptr<ProcessGroup> group) {
    const at::Tensor own = group->allocate(numel, at::kFloat);
    const auto window = group->make_window(own, "w");
    for (int version = 0; version < kVersions; ++version) {
      own.fill_(group->rank() * 10 + version);
      group->barrier("written");
      for (int rank = 0; rank < group->size(); ++rank) {
        at::Tensor to = at::zeros({numel});
        window->read(rank, 0, to, "unit", has_version ? version : Window::kUnversioned);
        EXPECT_TRUE(
            at::equal(to, at::full({numel}, 1.0f * static_cast<float>(rank * 10 + version))));
      }
      group->barrier("read");
    }
  });
  return (testing::fake_data_bytes() - before) / kVersions;
}

TEST(MpiWindowsOfHosts, BringAPartToAHostOnce) {
  constexpr int64_t kNumel = 5000;
  for (const auto& [hosts, locals] : {std::pair{2, 2}, std::pair{3, 2}, std::pair{2, 3}}) {
    const int64_t parts_of_others = (hosts - 1) * locals;
    const int64_t once = hosts * parts_of_others * kNumel * 4;
    EXPECT_EQ(sent_by_reads(hosts_in_order(hosts, locals), kNumel, true), once);
    // The control: values that may change are sent to each rank.
    EXPECT_EQ(sent_by_reads(hosts_in_order(hosts, locals), kNumel, false), once * locals);
  }
}

TEST(MpiWindowsOfHosts, AReadOfAGroupThatHasFailedNamesTheReaderAndTheUnit) {
  // A rank that is still making its window would fail there because of the others' barriers.
  std::latch windows_are_made(4);
  testing::run_mpi_hosts(hosts_in_order(2, 2), [&](std::shared_ptr<ProcessGroup> group) {
    const at::Tensor own = group->allocate(3, at::kFloat);
    const auto window = group->make_window(own, "w");
    windows_are_made.arrive_and_wait();
    message_of([&] { group->barrier(absl::StrCat("of rank ", group->rank())); });
    for (int i = 0; i < 8; ++i) {  // each rank, of this host and of the other, both ways
      const int64_t version = i < 4 ? 1 : Window::kUnversioned;
      at::Tensor to = at::zeros({3});
      const std::string error = message_of([&] { window->read(i % 4, 0, to, "unit", version); });
      EXPECT_THAT(error, AllOf(HasSubstr("read 'unit' on group"),
                               HasSubstr(absl::StrCat(", rank ", group->rank(), ": ")),
                               HasSubstr("called barrier 'of rank ")));
    }
  });
}

}  // namespace
}  // namespace tessera::internal
