#include "tessera/core/layout/partial_state_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace tessera::internal {
namespace {

PartialStateLayout partial_of(const FlatLayout& layout, int slice, const std::set<size_t>& having) {
  const Range range = layout.slice_range(slice);
  std::vector<Segment> segments = layout.segments(range);
  for (Segment& segment : segments) segment.buffer_offset -= range.begin;
  return {segments, range.numel,
          [&having](size_t parameter) { return having.contains(parameter); }};
}

TEST(PartialStateLayout, IsTheWholeSliceWhereAllParametersHaveTheState) {
  const FlatLayout layout(c10::kFloat, {100, 0, 7, 65, 1000}, 3);
  for (int slice = 0; slice < 3; ++slice) {
    const PartialStateLayout partial = partial_of(layout, slice, {0, 1, 2, 3, 4});
    EXPECT_EQ(partial.numel(), layout.slice_numel());
    for (const int64_t at : {int64_t{0}, int64_t{65}, layout.slice_numel() - 1}) {
      EXPECT_EQ(partial.find(at), at);
    }
  }
}

TEST(PartialStateLayout, LeavesOutParametersWithThePaddingBehindThem) {
  // Parameters at 0 to 100, 128 to 135, 192 to 257 and 320 to 330, of 384.
  const FlatLayout layout(c10::kFloat, {100, 7, 65, 10}, 1);
  const PartialStateLayout partial = partial_of(layout, 0, {0, 2});
  EXPECT_EQ(partial.numel(), 128 + 128);
  EXPECT_EQ(partial.find(99), 99);
  EXPECT_EQ(partial.find(128), -1);
  EXPECT_EQ(partial.find(192), 128);
  EXPECT_EQ(partial.find(256), 192);
  EXPECT_EQ(partial.find(320), -1);
  EXPECT_EQ(partial_of(layout, 0, {}).numel(), 0);
  EXPECT_EQ(partial_of(layout, 0, {}).find(0), -1);
}

TEST(PartialStateLayout, APaddingOnlySliceIsKept) {
  const FlatLayout layout(c10::kFloat, {3}, 2);
  EXPECT_EQ(partial_of(layout, 1, {}).numel(), layout.slice_numel());
}

TEST(PartialStateLayout, OfDrawnLayoutsHasEachElementOnceAndAligned) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> numels;
    std::set<size_t> having;
    for (size_t i = 0; i < 1 + random() % 8; ++i) {
      numels.push_back(static_cast<int64_t>(random() % 300));
      if (random() % 2 == 0) having.insert(i);
    }
    const int slices = 1 + static_cast<int>(random() % 4);
    const FlatLayout layout(c10::kFloat, numels, slices);
    for (int slice = 0; slice < slices; ++slice) {
      const PartialStateLayout partial = partial_of(layout, slice, having);
      EXPECT_EQ(partial.numel() % 64, 0);
      const Range range = layout.slice_range(slice);
      int64_t end = 0;
      for (const Segment& segment : layout.segments(range)) {
        const int64_t at = partial.find(segment.buffer_offset - range.begin);
        EXPECT_EQ(at >= 0, having.contains(segment.parameter));
        if (at < 0) continue;
        EXPECT_EQ(at % 64, 0);
        EXPECT_GE(at, end);
        end = at + segment.numel;
        EXPECT_EQ(partial.find(segment.buffer_offset - range.begin + segment.numel - 1), end - 1);
      }
      EXPECT_LE(end, partial.numel());
    }
  }
}

}  // namespace
}  // namespace tessera::internal
