#include "tessera/optim/eight_bit_wide_kernels.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

// GCC 12 takes the undefined values inside its own intrinsics for ours (its bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

// Before the pragma: what these define is not compiled for wide instructions.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "tessera/optim/formulas/adamw_element.h"
#include "tessera/optim/formulas/dynamic_code.h"
#include "tessera/optim/formulas/lion_element.h"

#pragma GCC push_options
#pragma GCC target("avx512f")

#include "tessera/optim/eight_bit_blocks.h"

namespace tessera::internal {

namespace {

using dynamic_code::Line;

/// The line of each decade, by the exponent of u. vpermps takes an index modulo 16, and the
/// exponent of a float is 127 more: 2^j is found at (127 + j) % 16. That of the largest number is
/// flat, so that it gives 1.
template <int kFirst>
struct LinesOverNumbers {
  alignas(64) std::array<float, 16> slopes{};
  alignas(64) std::array<float, 16> offsets{};

  constexpr LinesOverNumbers() {
    constexpr int kLow = kFirst == 1 ? 0 : 1;
    for (int decade = 0; decade < 7; ++decade)
      set(kLow + decade, dynamic_code::line_over_numbers<kFirst>(decade));
    set(kLow + 7, {.slope = 0, .offset = 1});
  }
  constexpr void set(int j, const Line& line) {
    slopes[static_cast<size_t>(127 + j) % 16] = line.slope;
    offsets[static_cast<size_t>(127 + j) % 16] = line.offset;
  }
};

/// The two lines that may be the smallest between two powers of four, by half the exponent of the
/// lower one, modulo 16: those of the decades that its ends are in.
template <int kFirst>
struct LinesOverValues {
  alignas(64) std::array<std::array<float, 16>, 2> slopes{};
  alignas(64) std::array<std::array<float, 16>, 2> offsets{};

  constexpr LinesOverValues() {
    double begin = 0.5;  // of the exponents 126 and 127
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
    static constexpr LinesOverNumbers<Tree::kFirst> kLines;
    const __m512 slopes = _mm512_load_ps(kLines.slopes.data());
    const __m512 offsets = _mm512_load_ps(kLines.offsets.data());
    for (int i = 0; i < kCodeBlock; i += 16) {
      const __m512i bytes =
          _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
      constexpr bool kIsSigned = Tree::kFirst == 1;
      const __m512i number =
          kIsSigned ? _mm512_min_epi32(bytes, _mm512_sub_epi32(_mm512_set1_epi32(256), bytes))
                    : _mm512_add_epi32(bytes, _mm512_set1_epi32(1));
      const __m512 u = _mm512_cvtepi32_ps(number);
      const __m512i exponent = _mm512_srli_epi32(_mm512_castps_si512(u), 23);
      const __m512 line = _mm512_fmadd_ps(u, _mm512_permutexvar_ps(exponent, slopes),
                                          _mm512_permutexvar_ps(exponent, offsets));
      __m512 value = _mm512_max_ps(line, _mm512_setzero_ps());
      if constexpr (kIsSigned) {
        const __m512i sign = _mm512_and_si512(_mm512_sub_epi32(_mm512_set1_epi32(128), bytes),
                                              _mm512_set1_epi32(~kMagnitudeBits));
        value = _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(value), sign));
      }
      _mm512_storeu_ps(moment + i, _mm512_mul_ps(value, _mm512_set1_ps(scale)));
    }
  }

  template <typename Tree>
  [[gnu::always_inline]] static void encode(const float* values, float inverse, uint8_t* codes) {
    static constexpr LinesOverValues<Tree::kFirst> kLines;
    constexpr float kTop = 128.0f * Tree::kFirst;
    const __m512 slopes0 = _mm512_load_ps(kLines.slopes[0].data());
    const __m512 slopes1 = _mm512_load_ps(kLines.slopes[1].data());
    const __m512 offsets0 = _mm512_load_ps(kLines.offsets[0].data());
    const __m512 offsets1 = _mm512_load_ps(kLines.offsets[1].data());
    const __m512i one = _mm512_set1_epi32(1);
    for (int i = 0; i < kCodeBlock; i += 16) {
      const __m512i bits = _mm512_castps_si512(_mm512_loadu_ps(values + i));
      const __m512i absolute = _mm512_and_si512(bits, _mm512_set1_epi32(kMagnitudeBits));
      const __m512 kept =
          _mm512_castsi512_ps(_mm512_min_epi32(absolute, _mm512_set1_epi32(kLargestScaleBits)));
      const __m512 value = _mm512_mul_ps(kept, _mm512_set1_ps(inverse));
      const __m512i half = _mm512_srli_epi32(
          _mm512_castps_si512(_mm512_max_ps(value, _mm512_set1_ps(0x1p-31f))), 24);
      const __m512 line0 = _mm512_fmadd_ps(value, _mm512_permutexvar_ps(half, slopes0),
                                           _mm512_permutexvar_ps(half, offsets0));
      const __m512 line1 = _mm512_fmadd_ps(value, _mm512_permutexvar_ps(half, slopes1),
                                           _mm512_permutexvar_ps(half, offsets1));
      const __m512 u = _mm512_min_ps(line0, line1);
      __m512i number = _mm512_cvttps_epi32(in_cell(u, kTop));
      if constexpr (Tree::kFirst == 1) {
        const __m512i sign = _mm512_srai_epi32(bits, 31);
        number = _mm512_min_epi32(number, _mm512_add_epi32(_mm512_set1_epi32(128), sign));
        number = _mm512_sub_epi32(_mm512_xor_si512(number, sign), sign);
      } else {
        number = _mm512_sub_epi32(number, one);
        const __mmask16 is_positive = _mm512_cmpgt_epi32_mask(absolute, _mm512_setzero_si512());
        number = _mm512_mask_max_epi32(number, is_positive, number, one);
      }
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), _mm512_cvtepi32_epi8(number));
    }
  }

  /// dynamic_code::cell_of() before it becomes an integer.
  [[gnu::always_inline]] static __m512 in_cell(__m512 u, float top) {
    const __m512 power =
        _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(u), _mm512_set1_epi32(~0x7fffff)));
    const __mmask16 late =
        _mm512_cmp_ps_mask(_mm512_sub_ps(u, power), _mm512_set1_ps(0.2f), _CMP_LT_OQ);
    const __mmask16 early = _mm512_cmp_ps_mask(u, _mm512_set1_ps(top - 0.25f), _CMP_GE_OQ);
    const __m512 shifted = _mm512_mask_sub_ps(u, late, u, _mm512_set1_ps(1.0f));
    return _mm512_mask_mov_ps(shifted, early, _mm512_set1_ps(top));
  }
};

}  // namespace

void adamw8bit_update_wide(float* values, const float* gradient, const CodedMoment& moment1,
                           const CodedMoment& moment2, int64_t numel,
                           const AdamwCoefficients& coefficients) {
  const AdamwBlocks<WideCodec, float> blocks{adamw_scalars<float>(coefficients)};
  update_blocks<WideCodec, 4>(values, gradient, numel, blocks, moment1, moment2);
}

void lion8bit_update_wide(float* values, const float* gradient, const CodedMoment& momentum,
                          int64_t numel, const LionCoefficients& coefficients) {
  const LionBlocks<WideCodec, float> blocks{lion_scalars<float>(coefficients)};
  update_blocks<WideCodec, 4>(values, gradient, numel, blocks, momentum);
}

#pragma GCC pop_options

bool has_wide_kernels() {
  static const bool has = __builtin_cpu_supports("avx512f") != 0;
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
