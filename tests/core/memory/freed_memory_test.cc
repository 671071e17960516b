#include "tessera/core/memory/freed_memory.h"
#include "tessera/core/memory/huge_pages.h"

#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

// The sanitizers replace malloc.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace tessera::internal {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

int64_t faults() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

/// Number of pages that fault when a block of `bytes` is filled.
int64_t faults_of_a_block(int64_t bytes) {
  const int64_t before = faults();
  auto* block = static_cast<volatile char*>(std::malloc(static_cast<size_t>(bytes)));
  for (int64_t i = 0; i < bytes; i += 4096) block[i] = 1;
  const int64_t after = faults();
  std::free(const_cast<char*>(block));
  return after - before;
}

int64_t faults_of_a_tensor(int64_t bytes) {
  const int64_t before = faults();
  at::full({bytes}, 1, at::kByte);
  return faults() - before;
}

TEST(FreedMemory, IsNotFaultedInAgain) {
  // By default glibc returns blocks over 32 MiB to the system, whatever was freed before.
  constexpr int64_t kBlock = 48 * kMebibyte;
  if (c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator()) {  // the setting is permanent
    faults_of_a_block(kBlock);
    faults_of_a_tensor(kBlock);
    // Without the setting both fault again, so the measurement works.
    EXPECT_GT(faults_of_a_block(kBlock), 20);
    EXPECT_GT(faults_of_a_tensor(kBlock), 20);
  }

  keep_freed_memory(kHugePageBytes);
  faults_of_a_block(kBlock);
  faults_of_a_tensor(kBlock);
  use_huge_pages_in_heap(/*at_most=*/std::chrono::hours(1));
  for (const int64_t bytes : {kBlock, kBlock / 3}) {
    EXPECT_LT(faults_of_a_block(bytes), 20);
    EXPECT_LT(faults_of_a_tensor(bytes), 20);
  }
}

TEST(FreedMemory, HoldsTensorsOfAllSizesAndOlderOnes) {
  at::Tensor older = at::full({kMebibyte}, 1, at::kByte);
  keep_freed_memory(kHugePageBytes);
  keep_freed_memory(kHugePageBytes);  // a second call has no effect
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{65535}, kMebibyte, 9 * kMebibyte}) {
    at::Tensor tensor = at::full({bytes}, 2, at::kByte);
    EXPECT_EQ(tensor.sum().item<int64_t>(), 2 * bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 64, 0U) << bytes;
    // Grows and shrinks storages by reallocation.
    tensor.resize_({2 * bytes + kMebibyte});
    EXPECT_EQ(tensor.narrow(0, 0, bytes).sum().item<int64_t>(), 2 * bytes);
  }
  EXPECT_EQ(older.sum().item<int64_t>(), kMebibyte);
  older.resize_({3 * kMebibyte});
  EXPECT_EQ(older.narrow(0, 0, kMebibyte).sum().item<int64_t>(), kMebibyte);
}

TEST(FreedMemory, ServesThoseWhoKeepBarePointers) {
  c10::Allocator* const before = c10::GetDefaultCPUAllocator();
  keep_freed_memory(kHugePageBytes);
  c10::Allocator* const now = c10::GetCPUAllocator();
  ASSERT_NE(now, before);
  for (const size_t bytes : {size_t{100}, size_t{1} << 20}) {
    now->raw_deallocate(now->raw_allocate(bytes));
    now->raw_deallocate(before->raw_allocate(bytes));
  }
}

struct Profiler final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t change_bytes, size_t, size_t, c10::Device) override {
    bytes += change_bytes;
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t bytes = 0;
};

TEST(FreedMemory, IsSeenByProfilers) {
  keep_freed_memory(kHugePageBytes);
  const auto profiler = std::make_shared<Profiler>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, profiler);
  for (const int64_t bytes : {int64_t{1000}, kMebibyte}) {
    at::Tensor tensor = at::empty({bytes}, at::kByte);
    EXPECT_EQ(profiler->bytes, bytes);
    tensor.reset();
    EXPECT_EQ(profiler->bytes, 0);
  }
}

}  // namespace
}  // namespace tessera::internal

#endif
