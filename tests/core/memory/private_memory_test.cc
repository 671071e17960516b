#include "tessera/core/memory/private_memory.h"

#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/core/memory/freed_memory.h"

namespace tessera {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(PrivateMemory, BeginsOnAPageAndHoldsWhatWasAskedFor) {
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{4095}, kLargeBytes - 1, kLargeBytes,
                              kLargeBytes + 1, 3 * kLargeBytes + 4097}) {
    const at::Tensor memory = allocate_private(bytes, at::kByte);
    EXPECT_EQ(memory.numel(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.const_data_ptr()) % 4096, 0U) << bytes;
    memory.fill_(7);
    if (bytes > 0) {
      EXPECT_EQ(memory[0].item<int>() + memory[bytes - 1].item<int>(), 14);
    }
  }
}

TEST(PrivateMemory, OfLargeBuffersBeginsOnAHugePage) {
  const at::Tensor memory = allocate_private(3 * kLargeBytes + 5, at::kByte);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.const_data_ptr()) % (2 * kMiB), 0U);
}

// The sanitizers bring a malloc of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

int64_t faults() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

/// How many pages are touched for the first time when a block of `bytes` is filled.
int64_t faults_of_a_block(int64_t bytes) {
  const int64_t before = faults();
  auto* block = static_cast<volatile char*>(std::malloc(static_cast<size_t>(bytes)));
  for (int64_t i = 0; i < bytes; i += 4096) block[i] = 1;
  const int64_t after = faults();
  std::free(const_cast<char*>(block));
  return after - before;
}

TEST(FreedMemory, IsNotFaultedInAgain) {
  // glibc's own rule gives blocks past 32 MiB back, whatever was freed before.
  constexpr int64_t kBlock = 48 * kMiB;
  faults_of_a_block(kBlock);
  // Without the setting it faults again: the measure works.
  EXPECT_GT(faults_of_a_block(kBlock), 20);

  keep_freed_memory();
  faults_of_a_block(kBlock);
  use_huge_pages_in_heap();
  EXPECT_LT(faults_of_a_block(kBlock), 20);
  EXPECT_LT(faults_of_a_block(kBlock / 3), 20);
}

#endif

}  // namespace
}  // namespace tessera
