// What is refused of one-sided reads, and what ends them or does not.
#include <stdexcept>
#include <string>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tessera/tests/core/comm/groups/window_suite.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using testing::read_new;
using testing::WindowBackend;

WindowBackend over_threads() {
  return {.world_sizes = {1, 2, 3},
          .run = [](int size, const auto& body) { testing::run_ranks(size, body); },
          .run_expecting_errors =
              [](int size, const auto& body) {
                return testing::run_ranks_expecting_errors(size, body);
              }};
}

TEST(WindowFailures, DifferencesAreNamedOnEveryRank) { test_window_differences(over_threads()); }
TEST(WindowFailures, MisuseThrowsAndHarmsNothing) { test_window_misuse(over_threads()); }
TEST(WindowFailures, AFailureEndsTheReadsOfItsGroupOrWorld) {
  test_failures_end_reads(over_threads());
}
TEST(WindowFailures, OutliveTheirGroupAndOwnersThatLeft) {
  test_windows_outlive_groups(over_threads());
}
TEST(WindowFailures, DoNotKeepTheirRankInTheGroup) {
  test_windows_do_not_keep_ranks(over_threads());
}

TEST(WindowFailures, PrivateMemoryIsRefusedOnEveryRank) {
  const auto errors =
      testing::run_ranks_expecting_errors(4, [](std::shared_ptr<ProcessGroup> world) {
        auto group = world->subgroup({1, 2, 3}, "three");
        if (group == nullptr) return;
        const at::Tensor shared = group->allocate(10, at::kFloat);
        std::string text;
        try {
          group->make_window(group->rank() == 1 ? at::zeros({10}) : shared, "w");
        } catch (const c10::Error& error) {
          text = error.what_without_backtrace();
        }
        shared.fill_(group->rank());
        const auto window = group->make_window(shared, "the group is as good as before");
        group->barrier();
        EXPECT_EQ(read_new(*window, 1, 9, 1).item<float>(), 1);
        group->barrier();
        throw std::runtime_error(text);
      });
  EXPECT_EQ(errors[0], "");
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(
        errors[rank],
        "[comm] make_window 'w': got private memory on rank 2 of the world, expected memory that "
        "peers can map; it must come from allocate()");
  }
}

}  // namespace
}  // namespace tessera::internal
