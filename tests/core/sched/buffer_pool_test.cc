#include "tessera/core/sched/buffer_pool.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace tessera::internal {
namespace {

class BufferPoolTest : public ::testing::Test {
 protected:
  BufferPool make(BufferPool::OnRelease on_release = BufferPool::OnRelease::kKeep) {
    return BufferPool([](int64_t numel, at::ScalarType dtype) { return at::empty({numel}, dtype); },
                      meter, MemoryClass::kGradientBuffers, on_release);
  }
  int64_t gradient_buffer_bytes() const { return meter.now()[MemoryClass::kGradientBuffers]; }

  MemoryMeter meter;
};

TEST_F(BufferPoolTest, GrowsWhenNoBufferIsFreeAndReusesTheRest) {
  {
    BufferPool pool = make();
    pool.reserve(at::kFloat, 100);
    pool.reserve(at::kFloat, 300);
    const at::Tensor a = pool.acquire(at::kFloat, 100);
    const at::Tensor b = pool.acquire(at::kFloat, 300);
    EXPECT_EQ(a.numel(), 100);
    EXPECT_EQ(b.numel(), 300);
    EXPECT_FALSE(a.is_alias_of(b));
    EXPECT_EQ(pool.buffers(), 2);
    EXPECT_EQ(gradient_buffer_bytes(), 2 * 300 * 4);

    pool.release(a);
    const at::Tensor c = pool.acquire(at::kFloat, 300);  // larger than the released buffer
    EXPECT_TRUE(c.is_alias_of(a));
    EXPECT_EQ(pool.buffers(), 2);
    EXPECT_EQ(meter.allocations(), 2);
  }
  EXPECT_EQ(gradient_buffer_bytes(), 0);
}

TEST_F(BufferPoolTest, KeepsDtypesApart) {
  BufferPool pool = make();
  pool.reserve(at::kFloat, 100);
  pool.reserve(at::kDouble, 50);
  pool.release(pool.acquire(at::kFloat, 100));
  const at::Tensor wide = pool.acquire(at::kDouble, 50);
  EXPECT_EQ(wide.scalar_type(), at::kDouble);
  EXPECT_EQ(pool.buffers(), 2);
}

TEST_F(BufferPoolTest, PoisonsTheWholeBufferOnRelease) {
  BufferPool pool = make(BufferPool::OnRelease::kPoison);
  pool.reserve(at::kFloat, 300);
  at::Tensor buffer = pool.acquire(at::kFloat, 300);
  buffer.zero_();
  pool.release(buffer.narrow(0, 0, 100));
  EXPECT_TRUE(buffer.isnan().all().item<bool>());
}

TEST_F(BufferPoolTest, KeepsContentsOtherwise) {
  BufferPool pool = make();
  pool.reserve(at::kFloat, 300);
  at::Tensor buffer = pool.acquire(at::kFloat, 300);
  buffer.zero_();
  pool.release(buffer);
  EXPECT_FALSE(buffer.isnan().any().item<bool>());
}

TEST_F(BufferPoolTest, TakesUnitsWithoutElements) {
  BufferPool pool = make(BufferPool::OnRelease::kPoison);
  pool.reserve(at::kFloat, 0);
  const at::Tensor buffer = pool.acquire(at::kFloat, 0);
  EXPECT_EQ(buffer.numel(), 0);
  pool.release(buffer);
}

TEST_F(BufferPoolTest, RefusesWhatWasNotReserved) {
  BufferPool pool = make();
  pool.reserve(at::kFloat, 10);
  EXPECT_THROW(pool.acquire(at::kFloat, 11), c10::Error);
  EXPECT_THROW(pool.acquire(at::kDouble, 1), c10::Error);
}

}  // namespace
}  // namespace tessera::internal
