// 8-bit codes compared with the paper's tables, and the updates that use them.
#include "tessera/optim/eight_bit/kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/optim/algorithms/adamw_kernels.h"
#include "tessera/optim/eight_bit/wide_kernels.h"

namespace tessera::internal {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// create_dynamic_map() of bitsandbytes, the paper's own code.
std::vector<double> dynamic_map(bool is_signed) {
  std::vector<double> values = {0.0, 1.0};
  for (int decade = 0; decade < 7; ++decade) {
    const int count = (is_signed ? 1 : 2) << decade;
    for (int i = 0; i < count; ++i) {
      const double mean = 0.1 + 0.9 * (i + 0.5) / count;
      values.push_back(std::pow(10.0, decade - 6) * mean);
      if (is_signed) values.push_back(-values.back());
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

/// The values of all codes in a block whose scale is 1, by code.
std::vector<float> values_of_codes(bool is_signed) {
  std::vector<uint8_t> codes(256);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  std::vector<float> scales(4, 1.0f);
  std::vector<float> values(256);
  dequantize({codes.data(), scales.data()}, values.data(), 256, is_signed);
  return values;
}

/// `values` after conversion to codes and back.
std::vector<float> through_codes(std::vector<float> values, bool is_signed) {
  const auto numel = static_cast<int64_t>(values.size());
  std::vector<uint8_t> codes(values.size());
  std::vector<float> scales((values.size() + kCodeBlock - 1) / kCodeBlock);
  quantize(values.data(), {codes.data(), scales.data()}, numel, is_signed);
  dequantize({codes.data(), scales.data()}, values.data(), numel, is_signed);
  return values;
}

TEST(EightBitCodes, AreThePapersTables) {
  for (const bool is_signed : {true, false}) {
    std::vector<float> values = values_of_codes(is_signed);
    EXPECT_EQ(values[0], 0.0f) << "so that zeroed memory is zero";
    std::sort(values.begin(), values.end());
    const std::vector<double> expected = dynamic_map(is_signed);
    ASSERT_EQ(expected.size(), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(values[i], expected[i], 1e-6 * std::abs(expected[i])) << i;
    }
    EXPECT_EQ(values.back(), 1.0f);
  }
}

TEST(EightBitCodes, AreTheNearestOnes) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<float> exponent(-8.0f, 0.0f);
  for (const bool is_signed : {true, false}) {
    const std::vector<double> table = dynamic_map(is_signed);
    for (int round = 0; round < 500; ++round) {
      std::vector<float> values(kCodeBlock);
      for (float& value : values) {
        value = std::pow(10.0f, exponent(random)) * (is_signed && random() % 2 == 0 ? -1 : 1);
      }
      values[0] = 1.0f;  // the scale
      const std::vector<float> coded = through_codes(values, is_signed);
      for (size_t i = 0; i < values.size(); ++i) {
        double best = kInfinity;
        for (const double candidate : table) {
          if (candidate == 0.0 && !is_signed) continue;  // a positive value stays positive
          best = std::min(best, std::abs(candidate - values[i]));
        }
        EXPECT_LE(std::abs(coded[i] - values[i]), best + 3e-6 * std::abs(values[i])) << values[i];
      }
    }
  }
}

TEST(EightBitCodes, OfCodesAreTheSameCodes) {
  for (const bool is_signed : {true, false}) {
    std::vector<float> values = values_of_codes(is_signed);
    for (size_t i = 0; i < values.size(); i += kCodeBlock) values[i] = 1.0f;
    EXPECT_EQ(through_codes(values, is_signed), values);
  }
}

TEST(EightBitCodes, KeepZeroAndScaleEachBlockByItself) {
  std::vector<float> values(3 * kCodeBlock + 5, 0.0f);
  for (size_t i = 64; i < 128; i += 2) values[i] = 1e-12f * static_cast<float>(i);
  values[193] = 3e8f;
  values[194] = -3e8f;
  const std::vector<float> coded = through_codes(values, /*is_signed=*/true);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(coded[i], values[i], 0.04f * std::abs(values[i])) << i;
  }
  EXPECT_EQ(coded[193], 3e8f);
}

TEST(EightBitCodes, OfExtremeNumbersAreDefined) {
  const float largest = std::numeric_limits<float>::max();
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (const bool is_signed : {true, false}) {
    EXPECT_EQ(through_codes({kInfinity, 1.0f}, is_signed)[0], std::ldexp(1.0f, 126));
    EXPECT_EQ(through_codes({largest, 0.0f}, is_signed),
              (std::vector<float>{std::ldexp(1.0f, 126), 0.0f}));
    EXPECT_EQ(through_codes({tiny, 0.0f}, is_signed), (std::vector<float>{0.0f, 0.0f}));
    const std::vector<float> broken = through_codes({1.0f, std::nanf(""), 0.0f}, is_signed);
    for (const float value : broken) EXPECT_TRUE(std::isnan(value)) << "NaN does not get lost";
  }
  // Steps are divided by the second moment, so it must not become 0.
  EXPECT_GT(through_codes({1.0f, 1e-30f}, /*is_signed=*/false)[1], 0.0f);
  EXPECT_EQ(through_codes({1.0f, 1e-30f}, /*is_signed=*/true)[1], 0.0f);
}

/// 2 and 3 units below the largest number lie next to the end of the last cell.
TEST(EightBitCodes, OfTheLargestNumbersNeighboursAreTheLargestCode) {
  for (const bool is_signed : {true, false}) {
    std::vector<float> values(kCodeBlock);
    for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0f - 0x1p-24f * static_cast<float>(i);
    EXPECT_EQ(through_codes(values, is_signed), std::vector<float>(kCodeBlock, 1.0f));
  }
}

constexpr AdamwCoefficients kOfAdamw = {.gradient_scale = 0.7,
                                        .decay = 0.999,
                                        .beta1 = 0.9,
                                        .beta2 = 0.99,
                                        .step_size = 3e-3,
                                        .root_correction2 = 0.3,
                                        .eps = 1e-8};
constexpr LionCoefficients kOfLion = {
    .gradient_scale = 0.7, .decay = 0.999, .beta1 = 0.9, .beta2 = 0.99, .lr = 1e-3};

template <typename T>
struct CodedArrays {
  explicit CodedArrays(size_t numel)
      : values(numel), gradient(numel), codes(2, std::vector<uint8_t>(numel)), scales(2) {
    std::mt19937_64 random(numel);
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> size(0.1, 1.0);
    for (size_t i = 0; i < numel; ++i) {
      values[i] = static_cast<T>(normal(random));
      gradient[i] = static_cast<T>(size(random) * (random() % 2 == 0 ? 1e-3 : -1e-3));
    }
    for (std::vector<float>& each : scales) each.resize((numel + kCodeBlock - 1) / kCodeBlock);
  }

  CodedMoment moment(size_t which, size_t begin) {
    return {codes[which].data() + begin, scales[which].data() + begin / kCodeBlock};
  }
  void adamw(size_t begin, size_t end) {
    adamw8bit_update(values.data() + begin, gradient.data() + begin, moment(0, begin),
                     moment(1, begin), static_cast<int64_t>(end - begin), kOfAdamw);
  }
  void lion(size_t begin, size_t end) {
    lion8bit_update(values.data() + begin, gradient.data() + begin, moment(0, begin),
                    static_cast<int64_t>(end - begin), kOfLion);
  }

  bool operator==(const CodedArrays&) const = default;

  std::vector<T> values;
  std::vector<T> gradient;
  std::vector<std::vector<uint8_t>> codes;
  std::vector<std::vector<float>> scales;
};

template <typename T>
class EightBitKernel : public ::testing::Test {};
using EightBitDtypes = ::testing::Types<float, double>;
TYPED_TEST_SUITE(EightBitKernel, EightBitDtypes);

TYPED_TEST(EightBitKernel, TheBitsDoNotDependOnWhereBlocksAreCut) {
  for (const size_t numel : {0u, 1u, 63u, 64u, 65u, 1000u}) {
    CodedArrays<TypeParam> whole(numel);
    CodedArrays<TypeParam> cut(numel);
    for (int step = 0; step < 3; ++step) {
      whole.adamw(0, numel);
      for (size_t i = 0; i < numel; i += 128) cut.adamw(i, std::min<size_t>(i + 128, numel));
    }
    EXPECT_EQ(whole, cut) << numel;
    for (int step = 0; step < 3; ++step) {
      whole.lion(0, numel);
      for (size_t i = 0; i < numel; i += 64) cut.lion(i, std::min<size_t>(i + 64, numel));
    }
    EXPECT_EQ(whole, cut) << numel;
  }
}

/// All codes, neighbours of the boundaries between codes, and random numbers of every magnitude.
std::vector<float> many_values(bool is_signed) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<float> exponent(-9.0f, 0.0f);
  std::vector<float> all = values_of_codes(is_signed);
  for (size_t i = 0; i < 256; ++i) {
    for (size_t j = 0; j < 256; ++j) {
      if (all[j] <= all[i] || j == i) continue;
      const float middle = (all[i] + all[j]) / 2;
      if (std::abs(all[j] - all[i]) > std::abs(middle)) continue;
      for (const float step : {-4e-7f, -1e-7f, 0.0f, 1e-7f, 4e-7f}) {
        all.push_back(middle * (1 + step));
      }
    }
  }
  for (int i = 0; i < 64; ++i) all.push_back(1.0f - 0x1p-24f * static_cast<float>(i));
  for (int i = 0; i < 20000; ++i) {
    const float value = std::pow(10.0f, exponent(random));
    all.push_back(is_signed && i % 2 == 0 ? -value : value);
  }
  return all;
}

/// Register permutations and loops compute the same bits.
TEST(EightBitWideKernel, HasTheBitsOfTheLoops) {
  if (!has_wide_kernels()) GTEST_SKIP() << "no AVX-512";
  for (const bool keeps_second : {false, true}) {
    // Nothing but rounding: with beta 0 the moment is the gradient or its square.
    AdamwCoefficients by = kOfAdamw;
    by.gradient_scale = 1;
    by.beta1 = 0;
    by.beta2 = 0;
    CodedArrays<float> wide(0);
    for (const float value : many_values(!keeps_second)) {
      if (wide.gradient.size() % kCodeBlock == 0) wide.gradient.push_back(1.0f);  // the scale
      wide.gradient.push_back(keeps_second ? std::sqrt(value) : value);
    }
    const size_t numel = wide.gradient.size();
    wide.values.resize(numel, 1.0f);
    for (auto& codes : wide.codes) codes.resize(numel);
    for (auto& scales : wide.scales) scales.resize((numel + kCodeBlock - 1) / kCodeBlock);
    CodedArrays<float> loops = wide;
    for (int step = 0; step < 2; ++step) {
      const auto count = static_cast<int64_t>(numel);
      adamw8bit_update_wide(wide.values.data(), wide.gradient.data(), wide.moment(0, 0),
                            wide.moment(1, 0), count, by);
      adamw8bit_update_by_loops(loops.values.data(), loops.gradient.data(), loops.moment(0, 0),
                                loops.moment(1, 0), count, by);
      EXPECT_EQ(wide, loops);
      lion8bit_update_wide(wide.values.data(), wide.gradient.data(), wide.moment(0, 0), count,
                           kOfLion);
      lion8bit_update_by_loops(loops.values.data(), loops.gradient.data(), loops.moment(0, 0),
                               count, kOfLion);
      EXPECT_EQ(wide, loops);
      by.beta1 = 0.9;  // reads what was stored
      by.beta2 = 0.99;
    }
  }
  for (const float extreme : {kInfinity, std::nanf(""), std::numeric_limits<float>::max(),
                              std::numeric_limits<float>::denorm_min(), -0.0f}) {
    CodedArrays<float> wide(70);
    wide.gradient[3] = extreme;
    wide.gradient[68] = extreme;
    CodedArrays<float> loops = wide;
    adamw8bit_update_wide(wide.values.data(), wide.gradient.data(), wide.moment(0, 0),
                          wide.moment(1, 0), 70, kOfAdamw);
    adamw8bit_update_by_loops(loops.values.data(), loops.gradient.data(), loops.moment(0, 0),
                              loops.moment(1, 0), 70, kOfAdamw);
    EXPECT_EQ(wide.codes, loops.codes);
  }
}

/// A partial block equals a whole one whose other elements are zero, as padding is.
TYPED_TEST(EightBitKernel, APartialBlockIsAWholeOneWithPadding) {
  CodedArrays<TypeParam> partial(100);
  CodedArrays<TypeParam> padded(100);
  padded.values.resize(128);
  padded.gradient.resize(128);
  for (auto& codes : padded.codes) codes.resize(128);
  for (int step = 0; step < 3; ++step) {
    partial.adamw(0, 100);
    padded.adamw(0, 128);
    EXPECT_EQ(padded.codes[0][127], 0);
    EXPECT_EQ(padded.codes[1][127], 0);
  }
  padded.values.resize(100);
  padded.gradient.resize(100);
  for (auto& codes : padded.codes) codes.resize(100);
  EXPECT_EQ(partial, padded);
}

/// From zero moments: values are updated with moments that are not yet rounded.
TYPED_TEST(EightBitKernel, TheFirstUpdateIsAdamwsAndTheSecondIsClose) {
  constexpr size_t kNumel = 300;
  CodedArrays<TypeParam> coded(kNumel);
  std::vector<TypeParam> values = coded.values;
  std::vector<TypeParam> first(kNumel);
  std::vector<TypeParam> second(kNumel);
  AdamwCoefficients by = kOfAdamw;
  by.decay = 1;  // values change by the step alone
  for (int step = 0; step < 2; ++step) {
    const std::vector<TypeParam> before = values;
    adamw8bit_update(coded.values.data(), coded.gradient.data(), coded.moment(0, 0),
                     coded.moment(1, 0), kNumel, by);
    adamw_update(values.data(), coded.gradient.data(), first.data(), second.data(), nullptr, kNumel,
                 by);
    if (step == 0) {
      EXPECT_EQ(coded.values, values);
    } else {
      EXPECT_NE(coded.values, values) << "else nothing was rounded";
    }
    for (size_t i = 0; i < kNumel; ++i) {
      const double moved = std::abs(values[i] - before[i]);
      EXPECT_NEAR(coded.values[i], values[i], 0.15 * moved + 1e-12) << step << " " << i;
    }
  }
}

}  // namespace
}  // namespace tessera::internal
