// One buffer for all ranks: what each rank sees of others' writes and its own.
#include "tessera/shared_buffer.h"

#include <sys/resource.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/memory/huge_pages.h"
#include "tessera/process_group.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/support/file_size_limit.h"
#include "tessera/tests/support/forked_child.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/refused_calls.h"
#include "tessera/tests/support/warnings_of_ranks.h"

namespace tessera::internal::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Runs `body` on `size` ranks with a common buffer of `numel` floats.
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
    // 7 as float is 40e00000: its third byte in memory is the first nonzero one.
    if (found.has_value()) {
      EXPECT_EQ(*found, 4 * (kNumel - 5) + 2);
    }
    world.barrier("found");
    if (world.rank() == 0) common.fill_(3);
    world.barrier("filled");
    // Only the page that was written does not follow the common memory.
    EXPECT_EQ(whole[0].item<float>(), 3);
    EXPECT_EQ(whole[kNumel - 5].item<float>(), world.rank() == 1 ? 7 : 3);
    buffer.drop_own_writes();
    EXPECT_TRUE(whole.eq(3).all().item<bool>());
    EXPECT_EQ(buffer.find_own_write(), std::nullopt);
  });
}

/// A write that changes nothing (a clamp, say) must not separate the page from later updates.
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
    for (const auto& [offset, numel] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 1}, {-4, 1}, {2, 1}, {4, std::numeric_limits<int64_t>::max()}}) {
      try {
        buffer.common(offset, numel, at::kFloat);
        FAIL() << offset << " " << numel;
      } catch (const c10::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("expected a part of its 0 bytes"));
      }
    }
  });
}

TEST_P(SharedBufferTest, NoSpaceIsEveryRanksErrorAndTheGroupGoesOn) {
  std::vector<std::string> errors(static_cast<size_t>(size()));
  // Before the ranks start, because the limit is the process's.
  const NoFileSizeSignal no_signal;
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

/// Makes a buffer on ranks, the last of which may not read its page map from then on.
std::unique_ptr<SharedBuffer> make_without_page_map(ProcessGroup& world) {
  if (world.rank() == world.size() - 1) refuse_calls({{SYS_pread64, EPERM}});
  return world.make_shared_buffer(20000, "buffer");
}

TEST_P(SharedBufferTest, IsNullOnAllRanksWhereOneCannotSeeItsOwnWrites) {
  if (!can_refuse_calls()) GTEST_SKIP() << "not run: this kernel has no seccomp filters";
  run_ranks(size(), [](std::shared_ptr<ProcessGroup> world) {
    EXPECT_NE(world->make_shared_buffer(20000, "buffer"), nullptr) << "the control";
    EXPECT_EQ(make_without_page_map(*world), nullptr);
    world->barrier("the group is as good as before");
  });
}

// Under a sanitizer shadow memory is private memory, too, and a failed allocation ends the process.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

/// While alive, limits this process's private memory to what it has plus `more_bytes`.
class DataLimit {
 public:
  explicit DataLimit(int64_t more_bytes) {
    ::getrlimit(RLIMIT_DATA, &before_);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(private_data_bytes() + more_bytes);
    ::setrlimit(RLIMIT_DATA, &limit);
  }
  ~DataLimit() { ::setrlimit(RLIMIT_DATA, &before_); }
  DataLimit(const DataLimit&) = delete;
  DataLimit& operator=(const DataLimit&) = delete;

 private:
  static int64_t private_data_bytes() {
    std::ifstream status("/proc/self/status");
    std::string word;
    int64_t kib = 0;
    while (status >> word && word != "VmData:") continue;
    status >> kib;
    return kib * 1024;
  }

  rlimit before_{};
};

TEST_P(SharedBufferTest, IsNullWhereALimitLeavesNoRoomForIt) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  run_ranks(size(), [](std::shared_ptr<ProcessGroup> world) {
    const auto makes = [&](int64_t bytes) {
      return world->make_shared_buffer(bytes, "buffer") != nullptr;
    };
    {
      std::optional<DataLimit> limit;
      if (world->rank() == 0) limit.emplace(96 * kMiB);
      world->barrier();
      EXPECT_FALSE(makes(160 * kMiB));
      EXPECT_TRUE(makes(kMiB));
      world->barrier();
    }
    world->barrier();
    EXPECT_TRUE(makes(160 * kMiB)) << "the control";
  });
}

#endif

TEST_P(SharedBufferTest, OneRankSaysOnceThatTheyDoNotShare) {
  if (!can_refuse_calls()) GTEST_SKIP() << "not run: this kernel has no seccomp filters";
  const auto make = [&](int buffers) {
    testing::WarningsOfRanks warnings;
    run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
      const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
      for (int i = 0; i < buffers; ++i) EXPECT_EQ(make_without_page_map(*world), nullptr);
    });
    return warnings.texts();
  };
  {
    // Warn even if earlier tests have caused this warning.
    const c10::WarningUtils::WarnAlways always;
    EXPECT_THAT(make(1), ElementsAre(HasSubstr("every rank keeps a copy of its own, for rank " +
                                               std::to_string(size() - 1) +
                                               " cannot share: [comm] page map: got -1 bytes")));
  }
  EXPECT_LE(make(3).size(), 1u);
}

TEST_P(SharedBufferTest, APageMapThatFailsLaterIsAnError) {
  if (!can_refuse_calls()) GTEST_SKIP() << "not run: this kernel has no seccomp filters";
  run_ranks(size(), [](std::shared_ptr<ProcessGroup> world) {
    const auto buffer = world->make_shared_buffer(20000, "buffer");
    ASSERT_NE(buffer, nullptr);
    if (world->rank() < world->size() - 1) {
      EXPECT_EQ(buffer->find_own_write(), std::nullopt);
    } else {
      refuse_calls({{SYS_pread64, EPERM}});
      EXPECT_THAT(message_of([&] { buffer->find_own_write(); }),
                  HasSubstr("a write to shared parameters goes unseen"));
    }
  });
}

TEST_P(SharedBufferTest, FollowsTheCommonMemoryInAllPagesFromTheStart) {
  on_ranks(size(), kNumel, [](ProcessGroup& world, SharedBuffer& buffer) {
    const at::Tensor whole = buffer.view(0, kNumel, at::kFloat);
    if (world.rank() == 0) buffer.common(0, kNumel, at::kFloat).fill_(6);
    world.barrier("filled");
    EXPECT_TRUE(whole.eq(6).all().item<bool>());
    EXPECT_EQ(buffer.find_own_write(), std::nullopt);
  });
}

// The file that shows its pages' state is opened when the buffer is made, not when it is needed.
const RankProcessBody kNoDescriptors("no_descriptors_left", [] {
  const auto world = init_process_group();
  const auto buffer = world->make_shared_buffer(20000, "buffer");
  ASSERT_NE(buffer, nullptr);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_EQ(buffer->find_own_write(), std::nullopt);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  if (world->rank() == 1) buffer->view(0, 20000, at::kByte)[12345].fill_(1);
  const std::optional<int64_t> found = buffer->find_own_write();
  std::printf("found %d\n", static_cast<int>(found.value_or(-1)));
  world->barrier("looked");
});

TEST(SharedBuffer, FindsAWriteAfterDescriptorsRanOut) {
  const auto results = run_rank_processes(2, "no_descriptors_left");
  EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
  EXPECT_THAT(results[0].output, HasSubstr("found -1\n"));
  EXPECT_EQ(results[1].exit_code, 0) << results[1].output;
  EXPECT_THAT(results[1].output, HasSubstr("found 12345\n"));
}

TEST(SharedBuffer, SizesThatDifferAreNamedAndTheGroupStaysUsable) {
  const auto errors = [](int64_t of_last) {
    std::vector<std::string> found(3);
    run_ranks(3, [&](std::shared_ptr<ProcessGroup> world) {
      const int64_t bytes = world->rank() == 2 ? of_last : 4096;
      found[world->rank()] = message_of([&] { world->make_shared_buffer(bytes, "buffer"); });
      world->barrier("after");
    });
    return found;
  };
  EXPECT_THAT(errors(4096), Each(kNothingThrown));
  EXPECT_THAT(errors(8192), Each(HasSubstr("got 8192 bytes where rank 0 asked for 4096")));
  EXPECT_THAT(errors(-5), Each(HasSubstr("got -5 bytes, expected 0 to ")));
}

TEST(SharedBuffer, IsNullInAWorldOfOne) {
  run_ranks(1, [](std::shared_ptr<ProcessGroup> world) {
    EXPECT_EQ(world->make_shared_buffer(4096, "buffer"), nullptr);
  });
}

}  // namespace
}  // namespace tessera::internal::testing
