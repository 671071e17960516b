#include "tessera/core/memory/private_memory.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

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
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.const_data_ptr()) % (size_t{2} << 20), 0U);
}

}  // namespace
}  // namespace tessera::internal
