#include "tessera/core/memory/block_heap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

constexpr int64_t kKiB = 1024, kMiB = kKiB * kKiB;
constexpr int64_t kRoom = 256 * kMiB;
constexpr int64_t kHead = 64;  // overhead of each block

struct HeldBlock {
  char* memory = nullptr;
  int64_t bytes = 0;
  char content = 0;
};

HeldBlock make(BlockHeap& heap, int64_t bytes, char content) {
  HeldBlock block{.memory = heap.allocate(bytes), .bytes = bytes, .content = content};
  if (block.memory != nullptr) std::memset(block.memory, content, bytes);
  return block;
}

bool is_intact(const HeldBlock& block) {
  return std::all_of(block.memory, block.memory + block.bytes,
                     [&](char byte) { return byte == block.content; });
}

/// Allocates and frees blocks of random sizes; returns true if each block still had its content
/// when it was freed.
bool survives_random_use(BlockHeap& heap, int seed) {
  std::minstd_rand random(seed);
  std::vector<HeldBlock> blocks;
  for (int i = 0; i < 2000; ++i) {
    if (blocks.size() < 40 && random() % 2 == 0) {
      blocks.push_back(
          make(heap, static_cast<int64_t>(random() % (40 * kKiB)), static_cast<char>(random())));
      if (blocks.back().memory == nullptr) return false;
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      if (!is_intact(blocks.back())) return false;
      heap.free(blocks.back().memory);
      blocks.pop_back();
    }
  }
  for (const HeldBlock& block : blocks) {
    if (!is_intact(block)) return false;
    heap.free(block.memory);
  }
  return true;
}

TEST(BlockHeap, GivesBlocksThatBeginOnACacheLineAndDoNotOverlap) {
  BlockHeap heap(kRoom);
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{64}, int64_t{4097}, 3 * kMiB}) {
    char* const block = heap.allocate(bytes);
    ASSERT_NE(block, nullptr) << bytes;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0U) << bytes;
    EXPECT_TRUE(heap.contains(block));
  }
  EXPECT_TRUE(survives_random_use(heap, 1));
  const int local = 0;
  EXPECT_FALSE(heap.contains(&local));
  EXPECT_FALSE(heap.contains(nullptr));
}

/// Negative control: the check of contents notices a byte that another block's owner has written.
TEST(BlockHeapControl, AnOverwrittenByteIsSeen) {
  BlockHeap heap(kRoom);
  const HeldBlock block = make(heap, 1000, 'a');
  EXPECT_TRUE(is_intact(block));
  block.memory[999] = 'b';
  EXPECT_FALSE(is_intact(block));
}

TEST(BlockHeap, ServesThreads) {
  BlockHeap heap(kRoom);
  std::vector<char> survived(4);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { survived[i] = survives_random_use(heap, i + 1) ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(survived, std::vector<char>(4, 1));
  // All holes have joined to one.
  EXPECT_EQ(heap.allocate(heap.grown_bytes() - kHead), heap.begin() + kHead);
}

TEST(BlockHeap, JoinsHolesInWhateverOrderTheyAppear) {
  std::vector<int> order{0, 1, 2};
  do {
    BlockHeap heap(kRoom);
    std::vector<char*> blocks;
    blocks.reserve(3);
    for (int i = 0; i < 3; ++i) blocks.push_back(heap.allocate(kMiB - kHead));
    heap.allocate(kMiB);  // so that the holes are not at the end
    const int64_t grown_bytes = heap.grown_bytes();
    for (const int i : order) heap.free(blocks[i]);
    EXPECT_EQ(heap.allocate(3 * kMiB - kHead), blocks[0]);
    EXPECT_EQ(heap.grown_bytes(), grown_bytes);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(BlockHeap, GrowsAHoleAtItsEnd) {
  BlockHeap heap(kRoom);
  char* const block = heap.allocate(kMiB - kHead);
  heap.free(block);
  EXPECT_EQ(heap.allocate(2 * kMiB - kHead), block);
  EXPECT_EQ(heap.grown_bytes(), 2 * kMiB);
}

/// Imitates a step: layers keep activations until backward reaches them, and use temporaries of
/// other sizes.
void imitate_step(BlockHeap& heap) {
  std::vector<char*> kept;
  for (int layer = 0; layer < 12; ++layer) {
    char* const before = heap.allocate(300 * kKiB);
    kept.push_back(heap.allocate(768 * kKiB));
    kept.push_back(heap.allocate(2304 * kKiB));
    char* const temporary = heap.allocate(3072 * kKiB);
    kept.push_back(heap.allocate(3072 * kKiB));
    heap.free(before);
    heap.free(temporary);
  }
  while (!kept.empty()) {
    char* const weight = heap.allocate(6912 * kKiB);
    for (int i = 0; i < 3; ++i) {
      char* const gradient = heap.allocate((768 + 1536 * i) * kKiB);
      heap.free(kept.back());
      kept.pop_back();
      heap.free(gradient);
    }
    heap.free(weight);
  }
}

TEST(BlockHeap, HoldsLittleMoreThanTheMostThatAStepUsesAndGrowsNoFurther) {
  constexpr int64_t kMaxUsed = (12 * 6144 + 6912 + 768) * kKiB;  // at the begin of backward
  BlockHeap heap(kRoom);
  imitate_step(heap);
  const int64_t grown_bytes = heap.grown_bytes();
  EXPECT_GE(grown_bytes, kMaxUsed);
  EXPECT_LT(grown_bytes, kMaxUsed * 6 / 5);
  for (int step = 0; step < 10; ++step) imitate_step(heap);
  EXPECT_EQ(heap.grown_bytes(), grown_bytes);
}

TEST(BlockHeap, RefusesWhatItHasNoAddressesFor) {
  BlockHeap heap(4 * kMiB);
  EXPECT_EQ(heap.allocate(5 * kMiB), nullptr);
  EXPECT_EQ(heap.allocate(int64_t{1} << 62), nullptr);
  char* const block = heap.allocate(kMiB);
  EXPECT_NE(block, nullptr);
  while (heap.allocate(100 * kKiB) != nullptr) {
  }
  heap.free(block);
  EXPECT_EQ(heap.allocate(kMiB), block);

  BlockHeap none(int64_t{1} << 60);  // more than a processor can address
  EXPECT_EQ(none.allocate(1), nullptr);
  EXPECT_FALSE(none.contains(block));
  EXPECT_EQ(none.grown_bytes(), 0);
}

/// Resident part of the `bytes` from `memory`, which begins on a page.
int64_t resident_bytes(char* memory, int64_t bytes) {
  const int64_t page_bytes = ::sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> pages(bytes / page_bytes);
  EXPECT_EQ(::mincore(memory, bytes, pages.data()), 0);
  return page_bytes *
         std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
}

TEST(BlockHeap, GivesHolesBackWhenAskedTo) {
  BlockHeap heap(kRoom);
  const HeldBlock first = make(heap, 3 * kMiB, 'a');
  const HeldBlock second = make(heap, 16 * kMiB, 'b');
  const HeldBlock third = make(heap, 3 * kMiB, 'c');
  heap.free(second.memory);
  EXPECT_GE(resident_bytes(heap.begin(), 20 * kMiB), 20 * kMiB);  // kept until then
  heap.give_back();
  EXPECT_LE(resident_bytes(heap.begin(), 20 * kMiB), 8 * kMiB);
  EXPECT_TRUE(is_intact(first));
  EXPECT_TRUE(is_intact(third));
  EXPECT_TRUE(is_intact(make(heap, 16 * kMiB, 'd')));
}

}  // namespace
}  // namespace tessera::internal
