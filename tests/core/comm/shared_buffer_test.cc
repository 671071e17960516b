// One buffer for all ranks: what each sees of what the others and it itself have written.
#include "tessera/core/comm/shared_buffer.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/process_group.h"
#include "tessera/core/memory/huge_pages.h"
#include "tessera/tests/support/file_size_limit.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

/// Runs `body` on `size` ranks that have a buffer of `numel` floats together.
void on_ranks(int size, int64_t numel,
              const std::function<void(ProcessGroup& world, SharedBuffer& buffer)>& body) {
  run_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
    const auto buffer = world->make_shared_buffer(numel * 4, "buffer");
    ASSERT_NE(buffer, nullptr);
    body(*world, *buffer);
  });
}

class SharedBufferTest : public ::testing::TestWithParam<int> {
 protected:
  static constexpr int64_t kNumel = 3 * kHugePageBytes / 4 + 77;
  int size() const { return GetParam(); }
};

TEST_P(SharedBufferTest, BeginsWithZerosAndShowsWhatAnyRankWritesToAll) {
  on_ranks(size(), kNumel, [](ProcessGroup& world, SharedBuffer& buffer) {
    const at::Tensor whole = buffer.view(0, kNumel, at::kFloat);
    EXPECT_EQ(whole.count_nonzero().item<int64_t>(), 0);
    world.barrier("seen");
    const int64_t share = kNumel / world.size();
    buffer.common(4 * share * world.rank(), share, at::kFloat).fill_(world.rank() + 1);
    world.barrier("written");
    for (int rank = 0; rank < world.size(); ++rank) {
      EXPECT_TRUE(whole.narrow(0, share * rank, share).eq(rank + 1).all().item<bool>()) << rank;
    }
  });
}

TEST_P(SharedBufferTest, KeepsWhatIsWrittenToAViewToThisRankUntilItIsDropped) {
  on_ranks(size(), kNumel, [](ProcessGroup& world, SharedBuffer& buffer) {
    const at::Tensor whole = buffer.view(0, kNumel, at::kFloat);
    const at::Tensor common = buffer.common(0, kNumel, at::kFloat);
    EXPECT_EQ(buffer.find_own_write(), std::nullopt);
    if (world.rank() == 1) whole[kNumel - 5].fill_(7);
    world.barrier("written");
    EXPECT_EQ(common[kNumel - 5].item<float>(), 0);
    EXPECT_EQ(whole[kNumel - 5].item<float>(), world.rank() == 1 ? 7 : 0);
    const std::optional<int64_t> found = buffer.find_own_write();
    EXPECT_EQ(found.has_value(), world.rank() == 1);
    // 7 as float is 40e00000: its third byte in memory is the first that is not zero.
    if (found.has_value()) {
      EXPECT_EQ(*found, 4 * (kNumel - 5) + 2);
    }
    world.barrier("found");
    if (world.rank() == 0) common.fill_(3);
    world.barrier("filled");
    // Only the page that was written does not follow.
    EXPECT_EQ(whole[0].item<float>(), 3);
    EXPECT_EQ(whole[kNumel - 5].item<float>(), world.rank() == 1 ? 7 : 3);
    buffer.drop_own_writes();
    EXPECT_TRUE(whole.eq(3).all().item<bool>());
    EXPECT_EQ(buffer.find_own_write(), std::nullopt);
  });
}

/// A write that changes nothing (a clamp, say) must not cut the page off from later updates.
TEST_P(SharedBufferTest, FollowsTheCommonMemoryAfterAWriteThatChangedNothing) {
  on_ranks(size(), kNumel, [](ProcessGroup& world, SharedBuffer& buffer) {
    const at::Tensor whole = buffer.view(0, kNumel, at::kFloat);
    whole.mul_(1);
    EXPECT_EQ(buffer.find_own_write(), std::nullopt);
    world.barrier("written");
    if (world.rank() == 0) buffer.common(0, kNumel, at::kFloat).fill_(5);
    world.barrier("filled");
    EXPECT_TRUE(whole.eq(5).all().item<bool>());
  });
}

TEST_P(SharedBufferTest, OutlivesBufferAndGroupInItsTensors) {
  std::vector<at::Tensor> views(static_cast<size_t>(size()));
  run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
    auto buffer = world->make_shared_buffer(4096, "buffer");
    if (world->rank() == 0) buffer->common(0, 1024, at::kFloat).fill_(2);
    world->barrier("written");
    views[static_cast<size_t>(world->rank())] = buffer->view(0, 1024, at::kFloat);
  });
  for (size_t rank = 0; rank < views.size(); ++rank) {
    EXPECT_TRUE(views[rank].eq(2).all().item<bool>());
    views[rank].fill_(static_cast<double>(rank) + 10);
  }
  for (size_t rank = 0; rank < views.size(); ++rank) {
    EXPECT_EQ(views[rank][0].item<double>(), static_cast<double>(rank) + 10);
  }
}

TEST_P(SharedBufferTest, MayBeEmptyAndRefusesPartsThatItDoesNotHave) {
  on_ranks(size(), 0, [](ProcessGroup& world, SharedBuffer& buffer) {
    EXPECT_EQ(buffer.view(0, 0, at::kDouble).numel(), 0);
    EXPECT_EQ(buffer.find_own_write(), std::nullopt);
    world.barrier("looked");
    for (const auto& [offset, numel] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 1 << 20}, {-4, 1}, {2, 1}}) {
      try {
        buffer.common(offset, numel, at::kFloat);
        FAIL() << offset << " " << numel;
      } catch (const c10::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("expected a part of its 4096 bytes"));
      }
    }
  });
}

TEST_P(SharedBufferTest, NoSpaceIsEveryRanksErrorAndTheGroupGoesOn) {
  std::vector<std::string> errors(static_cast<size_t>(size()));
  // Before the ranks start: the limit is the process's.
  const FileSizeLimit limit(8 << 20);
  run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
    try {
      world->make_shared_buffer(16 << 20, "weights");
    } catch (const c10::Error& error) {
      errors[static_cast<size_t>(world->rank())] = error.what_without_backtrace();
    }
    EXPECT_NE(world->make_shared_buffer(1 << 20, "smaller"), nullptr);
  });
  EXPECT_THAT(errors, Each(HasSubstr("[shared buffer 'weights'] rank 0: [comm] shared memory: got "
                                     "no space for 16777216 bytes")));
}

INSTANTIATE_TEST_SUITE_P(, SharedBufferTest, ::testing::Values(2, 3),
                         [](const auto& info) { return "World" + std::to_string(info.param); });

TEST(SharedBuffer, IsNullInAWorldOfOne) {
  run_ranks(1, [](std::shared_ptr<ProcessGroup> world) {
    EXPECT_EQ(world->make_shared_buffer(4096, "buffer"), nullptr);
  });
}

}  // namespace
}  // namespace tessera::testing
