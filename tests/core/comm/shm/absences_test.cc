// What absent ranks may do to those who wait for them: Note [Absent ranks].
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/groups/host_ranks.h"
#include "tessera/process_group.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::run_ranks_expecting_errors;

/// The ranks must have met within it, too.
constexpr auto kAbsencesLimit = std::chrono::milliseconds(1000);

std::string error_for_absent(const std::function<void(ProcessGroup&)>& call) {
  std::atomic<bool> is_absent{false}, is_over{false};
  const auto errors = run_ranks_expecting_errors(
      2,
      [&](std::shared_ptr<ProcessGroup> group) {
        if (group->rank() == 1) {
          dynamic_cast<HasHostRanks&>(*group).host_ranks()->begin_absence();
          is_absent.store(true);
          while (!is_over.load()) std::this_thread::yield();
          return;
        }
        while (!is_absent.load()) std::this_thread::yield();
        const std::string error = message_of([&] { call(*group); });
        is_over.store(true);
        throw std::runtime_error(error);
      },
      {.timeout = kAbsencesLimit});
  return errors[0];
}

TEST(Absences, DoNotKeepOthersWaitingForEver) {
  const std::string waited =
      absl::StrCat("waited ", kAbsencesLimit.count(), " ms for rank 1 (pid ");
  EXPECT_THAT(error_for_absent([](ProcessGroup& group) { group.barrier("b"); }),
              HasSubstr("timed out: rank 0 " + waited));
  EXPECT_THAT(error_for_absent([](ProcessGroup& group) { group.recv(at::zeros({1}), 1, "m"); }),
              HasSubstr("timed out: " + waited));
}

}  // namespace
}  // namespace tessera::internal
