#pragma once

#include <cstdint>
#include <memory>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace tessera::internal::testing {

/// How often the calling thread has called operator new, in this program and in every library it
/// loads. What the tests of this folder count instead of time.
int64_t heap_allocations();

/// Counts the tensor memory that the calling thread (and backwards it starts) asks LibTorch's
/// allocator for while the scope lives. Its bookkeeping allocates on the heap.
class TensorAllocations {
 public:
  TensorAllocations();
  int64_t count() const { return counter_->count; }

 private:
  struct Counter final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t alloc_size, size_t, size_t, c10::Device) override {
      if (alloc_size > 0) ++count;
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t count = 0;
  };

  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

}  // namespace tessera::internal::testing
