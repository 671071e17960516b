#include "tessera/optim/eight_bit/wide_kernels.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

// GCC 12 warns of undefined values inside its own intrinsics (its bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

// These headers come before `#pragma GCC target`, so that their functions are not compiled for wide
// instructions.
#include <immintrin.h>

#include <array>

#include "tessera/optim/eight_bit/dynamic_code.h"
#include "tessera/optim/formulas/adamw_element.h"
#include "tessera/optim/formulas/lion_element.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq")

#include "tessera/optim/eight_bit/blocks.h"

namespace tessera::internal {

namespace {

using dynamic_code::Line;

/// The line of each decade, indexed by the exponent of u * 2^kUp. vpermps takes an index modulo 16,
/// and a float's exponent is biased by 127, so 2^j is at (127 + j) % 16.
template <int kFirst, int kUp>
struct LinesOverNumbers {
  alignas(64) std::array<float, 16> slopes{};
  alignas(64) std::array<float, 16> offsets{};

  constexpr LinesOverNumbers() {
    constexpr int kLow = kFirst == 1 ? 0 : 1;
    for (int decade = 0; decade < 7; ++decade)
      set(kLow + decade, dynamic_code::line_over_numbers<kFirst>(decade));
    // The largest magnitude number stands for 1. In the signed tree its byte, 128, is read as -128.
    set(kLow + 7, {.slope = kFirst == 1 ? -0x1p-7f : 0x1p-8f, .offset = 0});
  }
  constexpr void set(int j, const Line& line) {
    slopes[static_cast<size_t>(127 + kUp + j) % 16] = line.slope / static_cast<float>(1 << kUp);
    offsets[static_cast<size_t>(127 + kUp + j) % 16] = line.offset;
  }
};

/// For each interval from b to 4 * b, where b is 1/2, 1/8, 1/32, ...: two inverse lines, one for
/// the decade in which each end of the interval lies. At every point of the interval, the smallest
/// of all inverse lines is one of these two. An interval's index is half the biased exponent of b,
/// modulo 16.
template <int kFirst>
struct LinesOverValues {
  alignas(64) std::array<std::array<float, 16>, 2> slopes{};
  alignas(64) std::array<std::array<float, 16>, 2> offsets{};

  constexpr LinesOverValues() {
    double begin = 0.5;  // the lowest value whose biased exponent is 126 or 127
    for (size_t half = 63; half > 63 - 16; --half, begin /= 4) {
      for (size_t end = 0; end < 2; ++end) {
        const int decade = decade_of(end == 0 ? begin : 4 * begin);
        const Line line = dynamic_code::line_over_values<kFirst>(decade);
        slopes[end][half % 16] = line.slope;
        offsets[end][half % 16] = line.offset;
      }
    }
  }
  static constexpr int decade_of(double value) {
    int decade = 0;
    while (decade < 6 && value >= dynamic_code::unit_of_decade(decade)) ++decade;
    return decade;
  }
};

struct WideCodec {
  template <typename Tree>
  [[gnu::always_inline]] static void decode(const uint8_t* codes, float scale, float* moment) {
    constexpr bool kIsSigned = Tree::kFirst == 1;
    // Signed numbers are multiplied by 2^24, so that only 0 has an exponent of 0 modulo 16. There
    // is no line for that index, so 0 becomes 0.
    static constexpr LinesOverNumbers<Tree::kFirst, kIsSigned ? 24 : 0> kLines;
    const __m512 slopes = _mm512_load_ps(kLines.slopes.data());
    const __m512 offsets = _mm512_load_ps(kLines.offsets.data());
    for (int i = 0; i < kCodeBlock; i += 16) {
      const __m512 u = kIsSigned ? signed_numbers(codes + i) : unsigned_numbers(codes + i);
      const __m512i exponent = _mm512_srli_epi32(_mm512_castps_si512(u), 23);
      const __m512 slope = _mm512_permutexvar_ps(exponent, slopes);
      __m512 offset = _mm512_permutexvar_ps(exponent, offsets);
      if constexpr (kIsSigned) offset = flipped_by(u, offset);
      const __m512 value = _mm512_fmadd_ps(u, slope, offset);
      _mm512_storeu_ps(moment + i, _mm512_mul_ps(value, _mm512_set1_ps(scale)));
    }
  }

  template <typename Tree>
  [[gnu::always_inline]] static void encode(const float* values, float inverse, uint8_t* codes) {
    __m512i numbers[4];
    for (int i = 0; i < 4; ++i)
      numbers[i] = number<Tree>(_mm512_loadu_ps(values + 16 * i), inverse);
    __m512i low;
    __m512i high;
    if constexpr (Tree::kFirst == 1) {
      low = _mm512_packs_epi32(numbers[0], numbers[1]);
      high = _mm512_packs_epi32(numbers[2], numbers[3]);
    } else {
      // A byte is its number minus 1. The subtraction saturates, so number 0 also becomes byte 0.
      const __m512i one = _mm512_set1_epi16(1);
      low = _mm512_subs_epu16(_mm512_packus_epi32(numbers[0], numbers[1]), one);
      high = _mm512_subs_epu16(_mm512_packus_epi32(numbers[2], numbers[3]), one);
    }
    const __m512i bytes =
        Tree::kFirst == 1 ? _mm512_packs_epi16(low, high) : _mm512_packus_epi16(low, high);
    // Restores the order of the bytes, because the pack instructions work on each 128 bits
    // separately.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(codes, _mm512_permutexvar_epi32(order, bytes));
  }

 private:
  /// Puts a byte of a signed tree into the highest byte of an integer, which is then 2^24 times the
  /// signed number; byte 128 becomes -2^31.
  [[gnu::always_inline]] static __m512 signed_numbers(const uint8_t* codes) {
    return _mm512_cvtepi32_ps(_mm512_slli_epi32(integers(codes), 24));
  }
  /// Returns byte + 1 as a float: puts the byte into the lowest bits of the float 2^23 and
  /// subtracts 2^23 - 1.
  [[gnu::always_inline]] static __m512 unsigned_numbers(const uint8_t* codes) {
    const __m512i bits = _mm512_or_si512(integers(codes), _mm512_set1_epi32(0x4b000000));
    return _mm512_sub_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p23f - 1));
  }
  [[gnu::always_inline]] static __m512i integers(const uint8_t* codes) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  }

  /// Returns `number`, with its sign flipped where the sign of `by` is set.
  [[gnu::always_inline]] static __m512 flipped_by(__m512 by, __m512 number) {
    const __m512i sign = _mm512_set1_epi32(~kMagnitudeBits);
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(
        _mm512_castps_si512(number), _mm512_castps_si512(by), sign, 0x78));  // a ^ (b & c)
  }

  /// For each magnitude of `values` * `inverse`, returns the value of the smallest inverse line at
  /// that magnitude.
  template <typename Tree>
  [[gnu::always_inline]] static __m512 point(__m512 values, float inverse) {
    static constexpr LinesOverValues<Tree::kFirst> kLines;
    // Values below kLeast are replaced by kLeast. In the signed tree both become 0. In the unsigned
    // tree kLeast lies in the cell of number 2, the lowest number that positive values get.
    constexpr float kLeast = Tree::kFirst == 1 ? 0x1p-31f : 0x1.5p-22f;
    const __m512 largest = _mm512_castsi512_ps(_mm512_set1_epi32(kLargestScaleBits));
    const __m512 kept = _mm512_range_ps(values, largest, 0b1010);  // the smaller magnitude
    const __m512 value =
        _mm512_max_ps(_mm512_mul_ps(kept, _mm512_set1_ps(inverse)), _mm512_set1_ps(kLeast));
    const __m512i half = _mm512_srli_epi32(_mm512_castps_si512(value), 24);
    const __m512 line0 =
        _mm512_fmadd_ps(value, _mm512_permutexvar_ps(half, _mm512_load_ps(kLines.slopes[0].data())),
                        _mm512_permutexvar_ps(half, _mm512_load_ps(kLines.offsets[0].data())));
    const __m512 line1 =
        _mm512_fmadd_ps(value, _mm512_permutexvar_ps(half, _mm512_load_ps(kLines.slopes[1].data())),
                        _mm512_permutexvar_ps(half, _mm512_load_ps(kLines.offsets[1].data())));
    return _mm512_min_ps(line0, line1);
  }

  /// Does what dynamic_code::cell_of() does, for 16 values. In a signed tree the results have the
  /// signs of `values`.
  template <typename Tree>
  [[gnu::always_inline]] static __m512i number(__m512 values, float inverse) {
    constexpr float kTop = 128.0f * Tree::kFirst;
    const __m512 u = point<Tree>(values, inverse);
    const __m512 power =
        _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(u), _mm512_set1_epi32(~0x7fffff)));
    const __mmask16 late =
        _mm512_cmp_ps_mask(_mm512_sub_ps(u, power), _mm512_set1_ps(0.2f), _CMP_LT_OQ);
    const __m512 cell = _mm512_mask_sub_ps(u, late, u, _mm512_set1_ps(1.0f));
    if constexpr (Tree::kFirst == 1) {
      // Only positive values get the largest number, which is written as -128 because its byte is
      // 128.
      const __m512 u_signed = flipped_by(values, u);
      const __mmask16 early =
          _mm512_cmp_ps_mask(u_signed, _mm512_set1_ps(kTop - 0.25f), _CMP_GE_OQ);
      return _mm512_cvttps_epi32(
          _mm512_mask_mov_ps(flipped_by(values, cell), early, _mm512_set1_ps(-kTop)));
    } else {
      const __mmask16 early = _mm512_cmp_ps_mask(u, _mm512_set1_ps(kTop - 0.25f), _CMP_GE_OQ);
      const __m512i bits = _mm512_castps_si512(values);
      const __mmask16 is_positive = _mm512_test_epi32_mask(bits, bits);
      return _mm512_maskz_cvttps_epi32(is_positive,
                                       _mm512_mask_mov_ps(cell, early, _mm512_set1_ps(kTop)));
    }
  }
};

}  // namespace

void adamw8bit_update_wide(float* values, const float* gradient, const CodedMoment& moment1,
                           const CodedMoment& moment2, int64_t numel,
                           const AdamwCoefficients& coefficients) {
  const AdamwBlocks<WideCodec, float> blocks{adamw_scalars<float>(coefficients)};
  update_blocks<WideCodec, 8>(values, gradient, numel, blocks, moment1, moment2);
}

void lion8bit_update_wide(float* values, const float* gradient, const CodedMoment& momentum,
                          int64_t numel, const LionCoefficients& coefficients) {
  const LionBlocks<WideCodec, float> blocks{lion_scalars<float>(coefficients)};
  update_blocks<WideCodec, 8>(values, gradient, numel, blocks, momentum);
}

#pragma GCC pop_options

bool has_wide_kernels() {
  static const bool has = __builtin_cpu_supports("avx512f") != 0 &&
                          __builtin_cpu_supports("avx512bw") != 0 &&
                          __builtin_cpu_supports("avx512dq") != 0;
  return has;
}

}  // namespace tessera::internal

#else

#include <c10/util/Exception.h>

namespace tessera::internal {

bool has_wide_kernels() { return false; }
void adamw8bit_update_wide(float*, const float*, const CodedMoment&, const CodedMoment&, int64_t,
                           const AdamwCoefficients&) {
  TORCH_INTERNAL_ASSERT(false);
}
void lion8bit_update_wide(float*, const float*, const CodedMoment&, int64_t,
                          const LionCoefficients&) {
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace tessera::internal

#endif
