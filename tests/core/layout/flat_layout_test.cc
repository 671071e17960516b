#include "tessera/flat_layout.h"
#include "tessera/tests/support/message_of.h"

#include <numeric>
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <c10/util/Exception.h>

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

/// The segments of all slices, their offsets counted from the buffer's start.
std::vector<Segment> segments_of_all_slices(const FlatLayout& layout) {
  std::vector<Segment> all;
  for (int slice = 0; slice < layout.slices(); ++slice) {
    const std::vector<Segment> segments = layout.segments(layout.slice_range(slice));
    all.insert(all.end(), segments.begin(), segments.end());
  }
  return all;
}

/// Returns what is wrong with `segments`; empty if they are exactly the parameters of `numels` laid
/// out by Note [Padding].
std::string problem_of(const std::vector<Segment>& segments, const std::vector<int64_t>& numels,
                       int64_t buffer_numel) {
  std::vector<int> covered(static_cast<size_t>(buffer_numel), 0);
  std::vector<int64_t> next(numels.size(), 0);
  int64_t last_end = 0;
  for (const Segment& segment : segments) {
    if (segment.parameter >= numels.size()) return "unknown parameter";
    if (segment.numel <= 0) return "empty segment";
    if (segment.buffer_offset < last_end) return "segments out of order or overlapping";
    if (segment.parameter_offset != next[segment.parameter]) return "hole in a parameter";
    if (segment.parameter_offset % 64 != 0) return "a cut inside a block of 64";
    next[segment.parameter] += segment.numel;
    last_end = segment.buffer_offset + segment.numel;
    if (last_end > buffer_numel) return "outside the buffer";
    for (int64_t i = segment.buffer_offset; i < last_end; ++i) ++covered[static_cast<size_t>(i)];
  }
  if (next != numels) return "a parameter is not whole";
  const int64_t sum = std::accumulate(numels.begin(), numels.end(), int64_t{0});
  if (std::accumulate(covered.begin(), covered.end(), int64_t{0}) != sum) return "covered twice";
  return "";
}

class FlatLayoutProperty
    : public ::testing::TestWithParam<std::tuple<c10::ScalarType, int, std::vector<int64_t>>> {};

TEST_P(FlatLayoutProperty, OffsetsAreAlignedAndSlicesPartitionEveryParameter) {
  const auto& [dtype, slices, numels] = GetParam();
  const FlatLayout layout(dtype, numels, slices);
  const int64_t element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t alignment = FlatLayout::alignment_numel(dtype);
  EXPECT_EQ(alignment % 64, 0);
  EXPECT_EQ(alignment * element_bytes % 256, 0);

  int64_t least_begin = 0;
  for (size_t i = 0; i < numels.size(); ++i) {
    const Range range = layout.parameter_range(i);
    EXPECT_EQ(range.begin % alignment, 0);
    EXPECT_EQ(range.numel, numels[i]);
    EXPECT_GE(range.begin, least_begin);
    EXPECT_LT(range.begin - least_begin, alignment) << "more padding than needed";
    least_begin = range.end();
  }
  EXPECT_GE(layout.numel(), least_begin);
  EXPECT_LT(layout.numel() - least_begin, (slices + 1) * alignment);

  EXPECT_EQ(layout.slice_numel() % alignment, 0);
  EXPECT_EQ(layout.slice_numel() * slices, layout.numel());
  EXPECT_EQ(layout.bytes(), layout.numel() * element_bytes);
  EXPECT_EQ(layout.slice_bytes() * slices, layout.bytes());
  for (int slice = 0; slice < slices; ++slice) {
    EXPECT_EQ(layout.slice_range(slice).begin, slice * layout.slice_numel());
    EXPECT_EQ(layout.slice_range(slice).numel, layout.slice_numel());
  }
  EXPECT_EQ(problem_of(segments_of_all_slices(layout), numels, layout.numel()), "");
  EXPECT_EQ(problem_of(layout.segments({0, layout.numel()}), numels, layout.numel()), "");
}

const std::vector<std::vector<int64_t>> kParameterSizes = {
    {},        {0},          {1},
    {7},       {13},         {63},
    {64},      {65},         {1000},
    {0, 0, 0}, {1, 1, 1},    {0, 7, 0, 13, 0},
    {64, 64},  {63, 64, 65}, {1000, 1, 0, 65, 7, 13, 64, 63, 1000},
};

INSTANTIATE_TEST_SUITE_P(All, FlatLayoutProperty,
                         ::testing::Combine(::testing::Values(c10::kFloat, c10::kDouble,
                                                              c10::kBFloat16, c10::kHalf),
                                            ::testing::Values(1, 2, 3, 4, 5, 7, 8),
                                            ::testing::ValuesIn(kParameterSizes)));

TEST(FlatLayout, HandComputedExample) {
  const FlatLayout layout(c10::kFloat, {65, 0, 1, 200}, 3);
  // 65 -> 128, 0 -> 0, 1 -> 64, 200 -> 256: 448, rounded up to a multiple of 3 * 64: 576.
  EXPECT_EQ(layout.numel(), 576);
  EXPECT_EQ(layout.bytes(), 2304);
  EXPECT_EQ(layout.slice_numel(), 192);
  EXPECT_EQ(layout.parameters(), 4u);
  EXPECT_EQ(layout.parameter_range(0), (Range{0, 65}));
  EXPECT_EQ(layout.parameter_range(1), (Range{128, 0}));
  EXPECT_EQ(layout.parameter_range(2), (Range{128, 1}));
  EXPECT_EQ(layout.parameter_range(3), (Range{192, 200}));
  EXPECT_EQ(layout.segments(layout.slice_range(0)),
            (std::vector<Segment>{{0, 0, 0, 65}, {2, 128, 0, 1}}));
  EXPECT_EQ(layout.segments(layout.slice_range(1)), (std::vector<Segment>{{3, 192, 0, 192}}));
  EXPECT_EQ(layout.segments(layout.slice_range(2)), (std::vector<Segment>{{3, 384, 192, 8}}));
  EXPECT_TRUE(layout.segments({448, 128}).empty()) << "only padding";
}

TEST(FlatLayout, AlignmentIsSixtyFourElementsAnd256Bytes) {
  EXPECT_EQ(FlatLayout::alignment_numel(c10::kDouble), 64);
  EXPECT_EQ(FlatLayout::alignment_numel(c10::kFloat), 64);
  EXPECT_EQ(FlatLayout::alignment_numel(c10::kBFloat16), 128);
  EXPECT_EQ(FlatLayout::alignment_numel(c10::kByte), 256);
}

TEST(FlatLayout, ParameterOffsetsDoNotDependOnTheNumberOfSlices) {
  const std::vector<int64_t> numels = {1000, 1, 0, 65, 7};
  const FlatLayout one(c10::kFloat, numels, 1);
  for (int slices : {2, 3, 4, 5, 7, 8}) {
    const FlatLayout many(c10::kFloat, numels, slices);
    for (size_t i = 0; i < numels.size(); ++i) {
      EXPECT_EQ(many.parameter_range(i), one.parameter_range(i));
    }
  }
}

TEST(FlatLayout, WrongArgumentsAreRefused) {
  EXPECT_THAT(message_of([] { FlatLayout(c10::kFloat, {1}, 0); }),
              HasSubstr("[layout] slices: got 0, expected at least 1"));
  EXPECT_THAT(message_of([] {
                FlatLayout(c10::kFloat, {4, -1}, 1);
              }),
              HasSubstr("[layout] parameter size: got -1, expected at least 0"));
  const FlatLayout layout(c10::kFloat, {100}, 2);
  EXPECT_THAT(message_of([&] { layout.slice_range(2); }),
              HasSubstr("[layout] slice: got 2, expected one of 0 to 1"));
  EXPECT_THAT(message_of([&] { layout.slice_range(-1); }), HasSubstr("[layout] slice: got -1"));
  EXPECT_THAT(message_of([&] {
                layout.segments({0, 129});
              }),
              HasSubstr("[layout] range: got 0 to 129, expected a part of 0 to 128"));
  EXPECT_THAT(message_of([&] {
                layout.segments({32, 32});
              }),
              HasSubstr("[layout] range: got begin 32, expected a multiple of 64"));
}

TEST(FlatLayoutNegativeControl, BrokenPaddingIsNoticed) {
  const std::vector<int64_t> numels = {100, 200};
  const FlatLayout layout(c10::kFloat, numels, 3);
  const std::vector<Segment> good = segments_of_all_slices(layout);
  ASSERT_EQ(problem_of(good, numels, layout.numel()), "");
  ASSERT_GE(good.size(), 3u);

  std::vector<Segment> shifted = good;  // a cut that ignores the alignment
  shifted[1].parameter_offset += 1;
  EXPECT_NE(problem_of(shifted, numels, layout.numel()), "");

  std::vector<Segment> dropped = good;
  dropped.pop_back();
  EXPECT_EQ(problem_of(dropped, numels, layout.numel()), "a parameter is not whole");

  std::vector<Segment> overlapping = good;
  overlapping[1].buffer_offset = overlapping[0].buffer_offset;
  EXPECT_EQ(problem_of(overlapping, numels, layout.numel()),
            "segments out of order or overlapping");

  // Without padding between parameters a slice begins inside a block of the second one.
  const std::vector<Segment> unpadded = {{0, 0, 0, 100}, {1, 100, 0, 28}, {1, 128, 28, 172}};
  EXPECT_EQ(problem_of(unpadded, numels, 384), "a cut inside a block of 64");
}

}  // namespace
}  // namespace tessera::internal
