// Ranks that wait for a rank of their own host that waits for another host:
// hosts::Link::extra_patience().
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/core/comm/hosts/mpi_hosts.h"
#include "tessera/tests/support/fake_mpi/fake_mpi.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_hosts.h"

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;
using testing::hosts_in_order;
using testing::kNothingThrown;
using testing::message_of;
using testing::place_of_host;
using testing::run_mpi_hosts_expecting_errors;

/// Time-out inside a host; between hosts it is a second longer.
constexpr auto kInsideHost = std::chrono::milliseconds(3000);
constexpr auto kBetweenHosts = kInsideHost + std::chrono::seconds(1);

void await(const std::atomic<int>& count, int value) {
  while (count.load() < value) std::this_thread::yield();
}

/// Runs `call` on four ranks of two hosts while rank 0's messages are lost; returns each rank's
/// error.
std::vector<std::string> errors_without_rank_0(
    const std::function<void(ProcessGroup& group, Window& window)>& call) {
  std::atomic<int> ready{0}, over{0};
  const auto errors = run_mpi_hosts_expecting_errors(
      hosts_in_order(2, 2),
      [&](std::shared_ptr<ProcessGroup> group) {
        std::unique_ptr<Window> window;
        const std::string problem = message_of([&] {
          window = group->make_window(group->allocate(100, at::kFloat), "w");
          group->barrier("first");
        });
        if (problem != kNothingThrown) {  // no rank waits for this one
          ready += 5;
          over += 4;
          throw std::runtime_error(problem);
        }
        ++ready;
        if (group->rank() == 0) {
          await(ready, 4);
          testing::lose_sends_of(0);
          ++ready;
        }
        await(ready, 5);
        const std::string error = message_of([&] { call(*group, *window); });
        ++over;
        await(over, 4);
        if (error != kNothingThrown) throw std::runtime_error(error);
      },
      kInsideHost);
  testing::lose_sends_of(-1);
  return errors;
}

// Rank 2 waits for rank 0. Rank 3 has heard from rank 1 and waits for rank 2; its time-out ends
// first.
TEST(HostAbsences, WhoWaitsForARankThatWaitsForAnotherHostNamesThatHost) {
  const auto errors = errors_without_rank_0([](ProcessGroup& group, Window&) {
    group.barrier("second");
    if (group.rank() == 3) group.barrier("third");
  });
  const std::string cause = absl::StrCat(": timed out: rank 2 waited ", kInsideHost.count(),
                                         " ms for rank 0", place_of_host(0));
  EXPECT_EQ(errors[0], "");
  EXPECT_EQ(errors[1], "");
  EXPECT_THAT(errors[2], HasSubstr("barrier #2 'second' on group 'world', rank 2" + cause));
  EXPECT_THAT(errors[3], HasSubstr("barrier #3 'third' on group 'world', rank 3" + cause));
}

TEST(HostAbsences, WhoWaitsForARankThatReadsOfAnotherHostNamesThatHost) {
  const auto errors = errors_without_rank_0([](ProcessGroup& group, Window& window) {
    at::Tensor to = at::zeros({100});
    if (group.rank() == 2) window.read(0, 0, to, "unit", /*version=*/1);
    if (group.rank() == 3) group.barrier("second");
  });
  const std::string cause =
      absl::StrCat(": timed out: rank 2 waited ", kBetweenHosts.count(), " ms for rank 0",
                   place_of_host(0), " to answer a read of 'unit'");
  EXPECT_THAT(errors[2], HasSubstr("read 'unit' on group 'world', rank 2" + cause));
  EXPECT_THAT(errors[3], HasSubstr("barrier #2 'second' on group 'world', rank 3" + cause));
}

// Rank 2 also fetches a part for rank 3, and is delayed before it has it. Rank 0 ends the world.
TEST(HostAbsences, WhoWaitsForWhatAnotherRankFetchesLearnsThatAnotherHostHasFailed) {
  std::atomic<int> steps{0};
  bool has_learned = false;
  const auto errors = run_mpi_hosts_expecting_errors(
      hosts_in_order(2, 2), [&](std::shared_ptr<ProcessGroup> group) {
        const auto window = group->make_window(group->allocate(100, at::kFloat), "w");
        group->barrier("first");
        at::Tensor to = at::zeros({100});
        const auto read = [&] { return window->start_read(0, 0, to, "unit", /*version=*/1); };
        if (group->rank() == 2) {
          const auto work = read();
          work->wait_for(std::chrono::milliseconds(0));  // announces that it is going to wait
          ++steps;
          // A third of the time after which rank 3 reads by itself in any case.
          const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
          while (steps.load() < 3 && std::chrono::steady_clock::now() < deadline) {
            std::this_thread::yield();
          }
          has_learned = steps.load() == 3;
        } else if (group->rank() == 3) {
          await(steps, 1);
          const auto work = read();
          EXPECT_FALSE(work->is_completed());
          ++steps;
          const std::string error = message_of([&] { work->wait(); });
          ++steps;
          throw std::runtime_error(error);
        } else if (group->rank() == 0) {
          await(steps, 2);
          group->abort("the user's reason");
        }
      });
  EXPECT_TRUE(has_learned);
  EXPECT_THAT(errors[3], HasSubstr("read 'unit' on group 'world', rank 3: the user's reason"));
}

}  // namespace
}  // namespace tessera::internal
