#include "tessera/core/reduce/scratch_buffers.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

namespace tessera::internal {
namespace {

int64_t gradient_buffer_bytes(const MemoryMeter& meter) {
  return meter.now()[MemoryClass::kGradientBuffers];
}

TEST(ScratchBuffers, UsesABufferAgainWhenNobodyHoldsIt) {
  MemoryMeter meter;
  {
    ScratchBuffers scratch(at::kCPU, meter, MemoryClass::kGradientBuffers);
    scratch.acquire(100, at::kFloat);
    scratch.acquire(60, at::kFloat);
    EXPECT_EQ(gradient_buffer_bytes(meter), 400);
    scratch.acquire(200, at::kFloat);  // replaces the smaller one
    EXPECT_EQ(gradient_buffer_bytes(meter), 800);
    scratch.acquire(10, at::kDouble);
    EXPECT_EQ(gradient_buffer_bytes(meter), 880);
  }
  EXPECT_EQ(gradient_buffer_bytes(meter), 0);
}

TEST(ScratchBuffers, LeavesWhatIsHeldAlone) {
  MemoryMeter meter;
  ScratchBuffers scratch(at::kCPU, meter, MemoryClass::kGradientBuffers);
  for (int pass = 0; pass < 3; ++pass) {
    const at::Tensor large = scratch.acquire(100, at::kFloat).fill_(1.0);
    const at::Tensor part = scratch.acquire(50, at::kFloat).fill_(2.0).narrow(0, 10, 5);
    const at::Tensor other = scratch.acquire(50, at::kFloat).fill_(3.0);
    EXPECT_EQ(large.sum().item<float>(), 100.0F);
    EXPECT_EQ(part.sum().item<float>(), 10.0F);
    EXPECT_EQ(gradient_buffer_bytes(meter), 800) << "each pass finds what the first one made";
  }
}

}  // namespace
}  // namespace tessera::internal
