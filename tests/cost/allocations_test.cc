#include "tessera/tests/cost/allocations.h"

#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tessera::internal::testing {
namespace {

thread_local int64_t heap_count = 0;

void* count_and_allocate(size_t bytes, size_t alignment) {
  ++heap_count;
  void* memory = nullptr;
  if (::posix_memalign(&memory, alignment, bytes == 0 ? 1 : bytes) != 0) throw std::bad_alloc();
  return memory;
}

}  // namespace

int64_t heap_allocations() { return heap_count; }

TensorAllocations::TensorAllocations()
    : counter_(std::make_shared<Counter>()), guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}

}  // namespace tessera::internal::testing

// Replaces operator new for the program and its libraries; the other forms call these.
void* operator new(size_t bytes) {
  return tessera::internal::testing::count_and_allocate(bytes, alignof(std::max_align_t));
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return tessera::internal::testing::count_and_allocate(bytes, static_cast<size_t>(alignment));
}
// If GCC inlines only one half of a pair, it believes that the other half is the library's.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
#pragma GCC diagnostic pop

namespace tessera::internal::testing {
namespace {

// Tests of the counters: without them, every check of this folder could be blind.

TEST(Allocations, CountsWhatThisProgramTakesFromTheHeap) {
  const int64_t before = heap_allocations();
  const std::vector<int> values(100, 7);
  EXPECT_EQ(heap_allocations() - before, 1) << values.size();
}

TEST(Allocations, CountsWhatLibTorchTakesFromTheHeap) {
  const int64_t before = heap_allocations();
  const at::Tensor tensor = at::empty({3});
  EXPECT_GT(heap_allocations() - before, 0) << tensor.numel();
}

TEST(Allocations, CountsThreadByThread) {
  const int64_t before = heap_allocations();
  int64_t there = 0;
  std::thread other;
  const int64_t here_before_start = heap_allocations();
  EXPECT_EQ(here_before_start, before);
  other = std::thread([&there] {
    const std::vector<int> values(100, 7);
    there = heap_allocations();
  });
  other.join();
  EXPECT_GE(there, 1);
}

TEST(Allocations, CountsTheMemoryOfTensors) {
  const TensorAllocations allocations;
  const at::Tensor tensor = at::ones({3});
  EXPECT_EQ(allocations.count(), 1);
  const at::Tensor sum = tensor + tensor;
  EXPECT_EQ(allocations.count(), 2);
  EXPECT_EQ(tensor.view({3, 1}).numel(), sum.numel());
  EXPECT_EQ(allocations.count(), 2) << "a view has no memory of its own";
}

}  // namespace
}  // namespace tessera::internal::testing
