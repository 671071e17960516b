#include "tessera/optim/cuda/walk.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/tests/optim/cuda/emulation.h"

namespace tessera::internal::cuda {
namespace {

constexpr int64_t kWalkedNumels[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 1023, 4096};

/// How often each element was visited, and in which way.
struct Visits {
  explicit Visits(int64_t numel) : count(static_cast<size_t>(numel), 0) {}

  bool is_each_once() const {
    for (const int visits : count) {
      if (visits != 1) return false;
    }
    return true;
  }

  std::vector<int> count;
  int64_t packs = 0;
};

struct CountingVisitor {
  Visits* visits;
  void single(int64_t i) const { ++visits->count[static_cast<size_t>(i)]; }
  void pack(int64_t begin) const {
    ++visits->packs;
    for (int64_t i = begin; i < begin + kPackNumel; ++i) single(i);
  }
};

template <typename... T>
Visits visit(int64_t numel, int64_t threads, const T*... arrays) {
  Visits visits(numel);
  const PackRange range = pack_range(numel, arrays...);
  run_workers(threads, [&](Worker thread) { walk(range, thread, CountingVisitor{&visits}); });
  return visits;
}

struct alignas(16) Memory {
  float wide[4200];
  uint16_t narrow[4200];
};

TEST(Walk, VisitsEveryElementOnceWhateverTheAddressAndTheThreads) {
  const Memory memory = {};
  for (const int64_t numel : kWalkedNumels) {
    for (int offset = 0; offset < 5; ++offset) {
      for (const int64_t threads : {1, 2, 3, 7, 32, 256, 5000}) {
        const Visits visits = visit(numel, threads, memory.wide + offset, memory.narrow + offset);
        EXPECT_TRUE(visits.is_each_once())
            << numel << " elements from " << offset << " by " << threads;
      }
    }
  }
}

TEST(Walk, TakesPacksWhereverTheyAreAligned) {
  const Memory memory = {};
  for (int offset = 0; offset < 4; ++offset) {
    const int64_t head = (4 - offset) % 4;
    const PackRange range = pack_range(1003, memory.wide + offset, memory.narrow + offset);
    EXPECT_EQ(range.head, head);
    EXPECT_EQ(range.packs, (1003 - head) / 4);
    EXPECT_TRUE(begins_pack(memory.wide + offset, range.head));
    EXPECT_TRUE(begins_pack(memory.narrow + offset, range.head));
  }
  // Aligned like slices of a FlatLayout.
  EXPECT_EQ(visit(4096, 32, memory.wide, memory.narrow).packs, 1024);
}

TEST(Walk, ArraysThatAreNeverAlignedTogetherAreWalkedOneByOne) {
  const Memory memory = {};
  const Visits visits = visit(1000, 32, memory.wide + 1, memory.narrow + 2);
  EXPECT_TRUE(visits.is_each_once());
  EXPECT_EQ(visits.packs, 0);
}

TEST(Walk, NegativeControlAForgottenTailAndATooLongHeadAreNoticed) {
  Visits visits(9);
  walk({.numel = 8, .head = 0, .packs = 2}, {0, 1}, CountingVisitor{&visits});
  EXPECT_FALSE(visits.is_each_once()) << "the tail was left out";
  Visits twice(9);
  const PackRange range = {.numel = 9, .head = 1, .packs = 2};
  walk(range, {0, 1}, CountingVisitor{&twice});
  EXPECT_TRUE(twice.is_each_once());
  walk(range, {1, 2}, CountingVisitor{&twice});
  EXPECT_FALSE(twice.is_each_once()) << "a share was done twice";
}

}  // namespace
}  // namespace tessera::internal::cuda
