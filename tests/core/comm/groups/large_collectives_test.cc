// More than 2^31 bytes. Tensors are views of memory that is mapped again and again, so that they
// need none: every 4 MiB of them are the same pages, but for the last. What is reduced is a
// maximum, which may be taken any number of times.
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <stdexcept>
#include <string>

#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include "tessera/process_group.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

constexpr int64_t kBlockBytes = int64_t{4} << 20;
constexpr int64_t kBlocks = (int64_t{1} << 31) / kBlockBytes + 1;
constexpr int64_t kBytes = (int64_t{1} << 31) + 4097;  // ends in the last block

/// kBlocks blocks in a row: the last of its own, the others one and the same.
class RepeatedBlocks {
 public:
  RepeatedBlocks() {
    const int file = ::memfd_create("repeated", MFD_CLOEXEC);
    if (file < 0 || ::ftruncate(file, 2 * kBlockBytes) != 0) throw std::runtime_error("memfd");
    void* const room = ::mmap(nullptr, kBlocks * kBlockBytes, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) throw std::runtime_error("no room");
    data_ = static_cast<char*>(room);
    for (int64_t i = 0; i < kBlocks; ++i) {
      void* const made = ::mmap(data_ + i * kBlockBytes, kBlockBytes, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_FIXED, file, i == kBlocks - 1 ? kBlockBytes : 0);
      if (made == MAP_FAILED) throw std::runtime_error("no mapping");
    }
    ::close(file);
  }
  ~RepeatedBlocks() { ::munmap(data_, kBlocks * kBlockBytes); }
  RepeatedBlocks(const RepeatedBlocks&) = delete;
  RepeatedBlocks& operator=(const RepeatedBlocks&) = delete;

  at::Tensor tensor() const { return at::from_blob(data_, {kBytes}, at::kByte); }

  void fill(int64_t usual, int64_t last) {
    tensor().narrow(0, 0, kBlockBytes).fill_(usual);
    end().fill_(last);
  }
  bool has(int64_t usual, int64_t last) const {
    return at::all(tensor().narrow(0, 0, kBlockBytes) == usual).item<bool>() &&
           at::all(end() == last).item<bool>();
  }

 private:
  at::Tensor end() const {
    const int64_t begin = (kBlocks - 1) * kBlockBytes;
    return tensor().narrow(0, begin, kBytes - begin);
  }

  char* data_ = nullptr;
};

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kIsSlow = true;
#else
constexpr bool kIsSlow = false;
#endif

TEST(LargeCollectives, BroadcastAndReductionOfMoreThan2To31Bytes) {
  if (kIsSlow) GTEST_SKIP() << "not run: takes minutes under a sanitizer";
  testing::run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    RepeatedBlocks blocks;
    blocks.fill(group->rank() + 1, group->rank() + 10);
    EXPECT_FALSE(blocks.has(2, 11) && group->rank() == 0);
    group->all_reduce(blocks.tensor(), ReduceOp::kMax, "max")->wait();
    EXPECT_TRUE(blocks.has(2, 11));
    if (group->rank() == 0) blocks.fill(5, 6);
    group->broadcast(blocks.tensor(), 0, "broadcast")->wait();
    EXPECT_TRUE(blocks.has(5, 6));
  });
}

TEST(LargeCollectives, AMessageOfMoreThan2To31Bytes) {
  if (kIsSlow) GTEST_SKIP() << "not run: takes minutes under a sanitizer";
  std::string lacking;
  testing::run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
    if (group->rank() == 1) {
      RepeatedBlocks blocks;
      blocks.fill(1, 2);
      group->recv(blocks.tensor().narrow(0, 0, 1), 0, "is there");
      if (blocks.tensor()[0].item<int64_t>() == 0) return;
      group->recv(blocks.tensor(), 0, "large");
      EXPECT_TRUE(blocks.has(7, 8));
      return;
    }
    at::Tensor sent;
    try {
      sent = group->allocate(kBytes, at::kByte);
    } catch (const c10::Error& error) {
      lacking = error.what_without_backtrace();
    }
    group->send(at::full({1}, sent.defined() ? 1 : 0, at::kByte), 1, "is there");
    if (!sent.defined()) return;
    sent.fill_(7);
    sent.narrow(0, (kBlocks - 1) * kBlockBytes, kBytes - (kBlocks - 1) * kBlockBytes).fill_(8);
    group->send(sent, 1, "large");
  });
  if (!lacking.empty()) GTEST_SKIP() << "not run: " << lacking;
}

}  // namespace
}  // namespace tessera::internal
