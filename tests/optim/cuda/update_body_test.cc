// The update's kernel body, compared with the CPU's loop, with the kernel's index arithmetic.
#include "tessera/optim/cuda/update_body.h"

#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/flat_layout.h"
#include "tessera/optim/algorithms/adamw_kernels.h"
#include "tessera/optim/cuda/pieces.h"
#include "tessera/tests/optim/cuda/adamw_launch.h"
#include "tessera/tests/optim/cuda/emulation.h"
#include "tessera/tests/optim/cuda/same_bits.h"

namespace tessera::internal::cuda {
namespace {

constexpr AdamwCoefficients kCoefficients = {.gradient_scale = 0.7,
                                             .decay = 0.999,
                                             .beta1 = 0.9,
                                             .beta2 = 0.999,
                                             .step_size = 3e-3,
                                             .root_correction2 = 0.3,
                                             .eps = 1e-8};
constexpr int64_t kUnused = 3;  // a parameter whose update does not apply
const std::vector<int64_t> kUpdatedNumels = {1, 63, 0, 130, 64, 9001, 65, 4096};

/// A slice's arrays after `offset` elements of other data, so that packs have a head.
template <typename Gradient, typename Target>
struct Slice {
  using Stored = std::conditional_t<std::is_void_v<Target>, float, Target>;

  Slice(int64_t numel, int64_t offset) : offset(offset) {
    std::mt19937_64 random(static_cast<uint64_t>(numel));
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < numel + offset; ++i) {
      values.push_back(normal(random));
      gradient.push_back(narrow<Gradient>(normal(random)));
      moment1.push_back(normal(random));
      moment2.push_back(std::abs(normal(random)));
      target.push_back(narrow<Stored>(normal(random)));
    }
  }

  UpdateArrays<AdamwRule, Gradient, Target> arrays() {
    UpdateArrays<AdamwRule, Gradient, Target> own = {
        values.data() + offset,
        gradient.data() + offset,
        {moment1.data() + offset, moment2.data() + offset, nullptr},
        nullptr};
    if constexpr (!std::is_void_v<Target>) own.target = target.data() + offset;
    return own;
  }

  /// Updates as the CPU does.
  void update_on_cpu(const std::vector<Segment>& segments) {
    for (const Segment& segment : segments) {
      if (segment.parameter == kUnused) continue;
      const auto begin = static_cast<size_t>(offset + segment.buffer_offset);
      std::vector<float> wide;
      for (size_t i = begin; i < begin + static_cast<size_t>(segment.numel); ++i) {
        wide.push_back(widen(gradient[i]));
      }
      adamw_update(values.data() + begin, wide.data(), moment1.data() + begin,
                   moment2.data() + begin, nullptr, segment.numel, kCoefficients);
      for (size_t i = begin; i < begin + wide.size(); ++i) target[i] = narrow<Stored>(values[i]);
    }
    if constexpr (std::is_void_v<Target>) target.clear();
  }

  bool operator==(const Slice& other) const {
    return same_bits(values, other.values) && same_bits(gradient, other.gradient) &&
           same_bits(moment1, other.moment1) && same_bits(moment2, other.moment2) &&
           (std::is_void_v<Target> || same_bits(target, other.target));
  }

  int64_t offset;
  std::vector<float> values;
  std::vector<Gradient> gradient;
  std::vector<float> moment1;
  std::vector<float> moment2;
  std::vector<Stored> target;
};

std::vector<ParameterUpdate> updates() {
  std::vector<ParameterUpdate> all(kUpdatedNumels.size(), update_by(kCoefficients));
  all[kUnused].applies = 0;
  return all;
}

/// The arguments of a launch over pieces, kept alive.
struct UpdateJob {
  explicit UpdateJob(const std::vector<Piece>& of) : pieces(of) {}
  UpdatePieces over(size_t count) const {
    return {pieces.data(), places.data(), static_cast<int64_t>(count), numbers.data()};
  }

  std::vector<Piece> pieces;
  std::vector<StatePlaces> places = places_of(pieces);
  std::vector<ParameterUpdate> numbers = updates();
};

template <typename Gradient, typename Target>
void expect_the_bits_of_the_cpu() {
  for (const int slices : {1, 3}) {
    const FlatLayout layout(c10::kFloat, kUpdatedNumels, slices);
    for (int slice = 0; slice < slices; ++slice) {
      std::vector<Segment> segments = layout.segments(layout.slice_range(slice));
      for (Segment& segment : segments) segment.buffer_offset -= layout.slice_range(slice).begin;
      const std::vector<Piece> pieces = cut_into_pieces(segments);
      const UpdateJob job(pieces);
      for (int64_t offset = 0; offset < 4; ++offset) {
        const Slice<Gradient, Target> before(layout.slice_numel(), offset);
        Slice<Gradient, Target> expected = before;
        expected.update_on_cpu(segments);
        for (const Launch& launch : kLaunches) {
          Slice<Gradient, Target> got = before;
          run_workers(launch.blocks, [&](Worker block) {
            run_workers(launch.threads, [&](Worker thread) {
              update_body(got.arrays(), job.over(pieces.size()), block, thread);
            });
          });
          EXPECT_TRUE(got == expected)
              << "slice " << slice << " of " << slices << " from " << offset << " by "
              << launch.blocks << " x " << launch.threads;
        }
      }
    }
  }
}

TEST(UpdateBody, GivesTheBitsOfTheCpu) {
  expect_the_bits_of_the_cpu<float, void>();
  expect_the_bits_of_the_cpu<BFloat16, void>();
  expect_the_bits_of_the_cpu<Half, void>();
}

TEST(UpdateBody, CastsIntoTheTarget) {
  expect_the_bits_of_the_cpu<float, float>();
  expect_the_bits_of_the_cpu<float, BFloat16>();
  expect_the_bits_of_the_cpu<BFloat16, BFloat16>();
  expect_the_bits_of_the_cpu<Half, Half>();
}

TEST(UpdateBody, LeavesPaddingAndUnusedParametersAlone) {
  const FlatLayout layout(c10::kFloat, kUpdatedNumels, 1);
  const std::vector<Segment> segments = layout.segments(layout.slice_range(0));
  const std::vector<Piece> pieces = cut_into_pieces(segments);
  const Slice<float, BFloat16> before(layout.numel(), 0);
  Slice<float, BFloat16> after = before;
  update_body(after.arrays(), UpdateJob(pieces).over(pieces.size()), {0, 1}, {0, 1});
  std::vector<bool> is_updated(before.values.size(), false);
  for (const Segment& segment : segments) {
    for (int64_t i = 0; i < segment.numel; ++i) {
      is_updated[static_cast<size_t>(segment.buffer_offset + i)] = segment.parameter != kUnused;
    }
  }
  for (size_t i = 0; i < is_updated.size(); ++i) {
    EXPECT_EQ(before.values[i] != after.values[i], is_updated[i]) << i;
    EXPECT_TRUE(is_updated[i] || before.target[i].bits == after.target[i].bits) << i;
  }
}

TEST(UpdateBody, NegativeControlAMissingPieceIsNoticed) {
  const FlatLayout layout(c10::kFloat, kUpdatedNumels, 1);
  const std::vector<Segment> segments = layout.segments(layout.slice_range(0));
  const std::vector<Piece> pieces = cut_into_pieces(segments);
  Slice<float, void> expected(layout.numel(), 0);
  Slice<float, void> got = expected;
  expected.update_on_cpu(segments);
  update_body(got.arrays(), UpdateJob(pieces).over(pieces.size() - 1), {0, 1}, {0, 1});
  EXPECT_FALSE(got == expected);
}

TEST(Pieces, CoverTheSegmentsInOrder) {
  const FlatLayout layout(c10::kFloat, kUpdatedNumels, 3);
  for (int slice = 0; slice < 3; ++slice) {
    const std::vector<Segment> segments = layout.segments(layout.slice_range(slice));
    const std::vector<Piece> pieces = cut_into_pieces(segments);
    size_t piece = 0;
    for (const Segment& segment : segments) {
      for (int64_t at = 0; at < segment.numel; ++piece) {
        ASSERT_LT(piece, pieces.size());
        EXPECT_EQ(pieces[piece].begin, segment.buffer_offset + at);
        EXPECT_EQ(pieces[piece].parameter, static_cast<int32_t>(segment.parameter));
        EXPECT_LE(pieces[piece].numel, kPieceNumel);
        at += pieces[piece].numel;
        EXPECT_LE(at, segment.numel);
      }
    }
    EXPECT_EQ(piece, pieces.size());
  }
}

TEST(Pieces, RefuseASegmentThatCutsABlock) {
  EXPECT_THROW(
      {
        try {
          cut_into_pieces(
              {{.parameter = 0, .buffer_offset = 0, .parameter_offset = 32, .numel = 8}});
        } catch (const c10::Error& error) {
          EXPECT_NE(
              std::string(error.what())
                  .find("[optim] segment: got parameter offset 32, expected a multiple of 64; take "
                        "FlatLayout::segments"),
              std::string::npos)
              << error.what();
          throw;
        }
      },
      c10::Error);
}

}  // namespace
}  // namespace tessera::internal::cuda
