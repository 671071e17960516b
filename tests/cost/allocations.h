#pragma once

#include <cstdint>
#include <memory>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace tessera::internal::testing {

/// Number of calls of operator new by the calling thread, in this program and all its libraries.
/// The tests of this folder count instead of measuring time.
int64_t heap_allocations();

/// While alive, counts the calling thread's allocations from LibTorch's allocator (and those of its
/// backward passes). Its bookkeeping allocates on the heap.
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
