#include "tessera/memory_meter.h"

#include <set>
#include <thread>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

TEST(MemoryMeter, CountsNowAndPeakByClass) {
  MemoryMeter meter;
  EXPECT_EQ(meter.now(), MemoryBytes{});
  meter.add(MemoryClass::kParameters, 100);
  meter.add(MemoryClass::kGradientBuffers, 50);
  meter.remove(MemoryClass::kGradientBuffers, 50);
  meter.add(MemoryClass::kGradients, 20);
  EXPECT_EQ(meter.now()[MemoryClass::kParameters], 100);
  EXPECT_EQ(meter.now()[MemoryClass::kGradientBuffers], 0);
  EXPECT_EQ(meter.now().total(), 120);
  EXPECT_EQ(meter.peak()[MemoryClass::kGradientBuffers], 50);
  EXPECT_EQ(meter.peak()[MemoryClass::kGradients], 20);
  // The classes peaked at different times.
  EXPECT_EQ(meter.peak().total(), 170);
  EXPECT_EQ(meter.peak_total_bytes(), 150);
  EXPECT_EQ(meter.allocations(), 3);

  meter.reset_peak();
  EXPECT_EQ(meter.peak(), meter.now());
  EXPECT_EQ(meter.peak_total_bytes(), 120);
  EXPECT_EQ(meter.allocations(), 3);
}

TEST(MemoryMeterNegativeControl, RemovingMoreThanThereIsThrows) {
  MemoryMeter meter;
  meter.add(MemoryClass::kControl, 8);
  meter.add(MemoryClass::kParameters, 8);
  try {
    meter.remove(MemoryClass::kControl, 9);
    FAIL() << "expected an error";
  } catch (const c10::Error& error) {
    EXPECT_THAT(
        error.what_without_backtrace(),
        ::testing::HasSubstr("[memory] control: got 9 bytes to remove, expected at most 8"));
  }
  EXPECT_EQ(meter.now()[MemoryClass::kControl], 8);
  EXPECT_THROW(meter.add(MemoryClass::kControl, -1), c10::Error);
  EXPECT_THROW(meter.remove(MemoryClass::kControl, -1), c10::Error);
}

TEST(MemoryMeter, IsThreadSafe) {
  MemoryMeter meter;
  constexpr int kThreads = 3;
  constexpr int kRounds = 1000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&meter] {
      for (int i = 0; i < kRounds; ++i) {
        meter.add(MemoryClass::kGradientBuffers, 2);
        meter.remove(MemoryClass::kGradientBuffers, 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(meter.now()[MemoryClass::kGradientBuffers], kThreads * kRounds);
  EXPECT_EQ(meter.allocations(), kThreads * kRounds);
  EXPECT_GE(meter.peak_total_bytes(), kThreads * kRounds);
  EXPECT_LE(meter.peak_total_bytes(), kThreads * (kRounds + 1));
}

TEST(MemoryClass, EveryClassHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < kMemoryClasses; ++i) {
    names.insert(to_string(static_cast<MemoryClass>(i)));
  }
  EXPECT_EQ(names.size(), kMemoryClasses);
  EXPECT_EQ(names.count("unknown memory class"), 0u);
}

TEST(ProcessPss, GrowsWithTouchedMemory) {
  const int64_t before = process_pss_bytes();
  ASSERT_GT(before, int64_t{1} << 20);
  constexpr int64_t kBytes = int64_t{64} << 20;
  // A library's share changes as other programs that map it start and end; private memory
  // eventually outweighs that.
  std::vector<std::vector<char>> touched;
  int64_t grown = 0;
  while (grown <= kBytes / 2 && touched.size() < 16) {
    touched.emplace_back(kBytes, 1);
    grown = process_pss_bytes() - before;
  }
  EXPECT_GT(grown, kBytes / 2) << touched.back().back();
}

}  // namespace
}  // namespace tessera::internal
