// Tensors are views of memory that is mapped repeatedly, so they need little: all blocks of 4 MiB
// are the same pages, except those with an end of a half. Reductions are maxima, which may be
// applied any number of times.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <stdexcept>

#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include "tessera/tests/core/comm/groups/group_suite.h"

namespace tessera::internal::testing {
namespace {

constexpr int64_t kBlockBytes = int64_t{4} << 20;
constexpr int64_t kBlocks = (int64_t{1} << 31) / kBlockBytes + 1;
constexpr int64_t kHalf = (int64_t{1} << 30) + 2049;  // ends in the block in the middle

/// The first and last value of the first half, then of the second half.
using Ends = std::array<int64_t, 4>;

class RepeatedBlocks {
 public:
  RepeatedBlocks() {
    const int file = ::memfd_create("repeated", MFD_CLOEXEC);
    if (file < 0 || ::ftruncate(file, 4 * kBlockBytes) != 0) throw std::runtime_error("memfd");
    void* const room = ::mmap(nullptr, kBlocks * kBlockBytes, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) throw std::runtime_error("no room");
    data_ = static_cast<char*>(room);
    for (int64_t i = 0; i < kBlocks; ++i) {
      const int64_t which = i == 0 ? 1 : i == kHalf / kBlockBytes ? 2 : i == kBlocks - 1 ? 3 : 0;
      void* const made = ::mmap(data_ + i * kBlockBytes, kBlockBytes, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_FIXED, file, which * kBlockBytes);
      if (made == MAP_FAILED) throw std::runtime_error("no mapping");
    }
    ::close(file);
  }
  ~RepeatedBlocks() { ::munmap(data_, kBlocks * kBlockBytes); }
  RepeatedBlocks(const RepeatedBlocks&) = delete;
  RepeatedBlocks& operator=(const RepeatedBlocks&) = delete;

  at::Tensor whole() const { return at::from_blob(data_, {2 * kHalf}, at::kByte); }
  at::Tensor half(int64_t which) const { return whole().narrow(0, which * kHalf, kHalf); }

  void fill(int64_t usual, const Ends& ends) {
    for (const int64_t which : {int64_t{0}, int64_t{1}}) {
      half(which).narrow(0, 0, 2 * kBlockBytes).fill_(usual);
      half(which).narrow(0, kHalf - kBlockBytes, kBlockBytes).fill_(usual);
    }
    for (const int64_t which : {int64_t{0}, int64_t{1}}) {
      half(which)[0] = ends[2 * which];
      half(which)[kHalf - 1] = ends[2 * which + 1];
    }
  }
  bool has(int64_t usual, const Ends& ends) const {
    return half_has(0, usual, ends[0], ends[1]) && half_has(1, usual, ends[2], ends[3]);
  }
  bool half_has(int64_t which, int64_t usual, int64_t first, int64_t last) const {
    const at::Tensor begin = half(which).narrow(0, 0, 2 * kBlockBytes);
    const at::Tensor end = half(which).narrow(0, kHalf - kBlockBytes, kBlockBytes);
    const auto is_usual = [&](const at::Tensor& bytes) {
      return at::all(bytes == usual).item<bool>();
    };
    return begin[0].item<int64_t>() == first && is_usual(begin.narrow(0, 1, 2 * kBlockBytes - 1)) &&
           is_usual(end.narrow(0, 0, kBlockBytes - 1)) &&
           end[kBlockBytes - 1].item<int64_t>() == last;
  }

 private:
  char* data_ = nullptr;
};

Ends ends_of(int rank) { return {10 + rank, 20 + rank, 30 + rank, 40 + rank}; }

}  // namespace

void test_large_collectives(const GroupBackend& backend) {
  backend.run(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    const int rank = group->rank();
    RepeatedBlocks given, taken;
    given.fill(rank + 1, ends_of(rank));
    EXPECT_EQ(given.has(2, ends_of(1)), rank == 1);  // shows that the check can fail
    backend.wait(*group->reduce_scatter(taken.half(0), given.whole(), ReduceOp::kMax, "slice"));
    EXPECT_TRUE(taken.half_has(0, 2, ends_of(1)[2 * rank], ends_of(1)[2 * rank + 1]));
    EXPECT_TRUE(given.has(rank + 1, ends_of(rank)));
    backend.wait(*group->all_reduce(given.whole(), ReduceOp::kMax, "max"));
    EXPECT_TRUE(given.has(2, ends_of(1)));
    if (rank == 0) given.fill(5, {6, 7, 8, 9});
    backend.wait(*group->broadcast(given.whole(), 0, "broadcast"));
    EXPECT_TRUE(given.has(5, {6, 7, 8, 9}));
    given.fill(5, ends_of(rank));
    backend.wait(*group->all_gather(taken.whole(), given.half(0), "gather"));
    EXPECT_TRUE(taken.has(5, {10, 20, 11, 21}));
    taken.fill(0, {0, 0, 0, 0});
    backend.wait(*group->all_to_all(taken.whole(), given.whole(), "exchange"));
    EXPECT_TRUE(taken.has(5, rank == 0 ? Ends{10, 20, 11, 21} : Ends{30, 40, 31, 41}));
  });
}

void test_large_message(const GroupBackend& backend) {
  backend.run(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    RepeatedBlocks blocks;
    blocks.fill(1, {2, 3, 4, 5});
    if (group->rank() == 0) {
      blocks.fill(7, {8, 9, 10, 11});
      group->send(blocks.whole(), 1, "large");
    } else {
      group->recv(blocks.whole(), 0, "large");
      EXPECT_TRUE(blocks.has(7, {8, 9, 10, 11}));
    }
    group->barrier("received");
  });
}

}  // namespace tessera::internal::testing
