#include "tessera/optim/eight_bit/kernels.h"

#include <algorithm>

#include "tessera/core/numbers/vector_targets.h"
#include "tessera/optim/eight_bit/blocks.h"
#include "tessera/optim/eight_bit/dynamic_code.h"
#include "tessera/optim/eight_bit/wide_kernels.h"

namespace tessera::internal {

namespace {

/// A Codec of loops that the compiler vectorises.
struct LoopCodec {
  template <typename Tree, typename T>
  [[gnu::always_inline]] static void decode(const uint8_t* codes, float scale,
                                            T* __restrict moment) {
    alignas(64) int32_t bytes[kCodeBlock];
    for (int i = 0; i < kCodeBlock; ++i) bytes[i] = codes[i];
    for (int i = 0; i < kCodeBlock; ++i) moment[i] = static_cast<T>(Tree::value(bytes[i]) * scale);
  }
  template <typename Tree>
  [[gnu::always_inline]] static void encode(const float* values, float inverse, uint8_t* codes) {
    alignas(64) int32_t bytes[kCodeBlock];
    for (int i = 0; i < kCodeBlock; ++i) bytes[i] = Tree::byte(values[i], inverse);
    for (int i = 0; i < kCodeBlock; ++i) codes[i] = static_cast<uint8_t>(bytes[i]);
  }
};

template <typename Tree>
[[gnu::always_inline]] inline void quantize_by(const float* values, const CodedMoment& moment,
                                               int64_t numel) {
  for (int64_t done = 0; done < numel; done += kCodeBlock) {
    const int64_t count = std::min(kCodeBlock, numel - done);
    float block[kCodeBlock] = {};
    uint8_t codes[kCodeBlock];
    std::copy_n(values + done, count, block);
    quantize_blocks<LoopCodec, Tree, 1>(block, {codes, moment.scales + done / kCodeBlock});
    std::copy_n(codes, count, moment.codes + done);
  }
}

template <typename Tree>
[[gnu::always_inline]] inline void dequantize_by(const CodedMoment& moment, float* values,
                                                 int64_t numel) {
  for (int64_t done = 0; done < numel; done += kCodeBlock) {
    const int64_t count = std::min(kCodeBlock, numel - done);
    float block[kCodeBlock];
    uint8_t codes[kCodeBlock] = {};
    std::copy_n(moment.codes + done, count, codes);
    LoopCodec::decode<Tree>(codes, moment.scales[done / kCodeBlock], block);
    std::copy_n(block, count, values + done);
  }
}

}  // namespace

TESSERA_FMA_TARGETS void adamw8bit_update_by_loops(float* values, const float* gradient,
                                                   const CodedMoment& moment1,
                                                   const CodedMoment& moment2, int64_t numel,
                                                   const AdamwCoefficients& coefficients) {
  const AdamwBlocks<LoopCodec, float> blocks{adamw_scalars<float>(coefficients)};
  update_blocks<LoopCodec, 1>(values, gradient, numel, blocks, moment1, moment2);
}
TESSERA_FMA_TARGETS void adamw8bit_update(double* values, const double* gradient,
                                          const CodedMoment& moment1, const CodedMoment& moment2,
                                          int64_t numel, const AdamwCoefficients& coefficients) {
  const AdamwBlocks<LoopCodec, double> blocks{adamw_scalars<double>(coefficients)};
  update_blocks<LoopCodec, 1>(values, gradient, numel, blocks, moment1, moment2);
}

TESSERA_FMA_TARGETS void lion8bit_update_by_loops(float* values, const float* gradient,
                                                  const CodedMoment& momentum, int64_t numel,
                                                  const LionCoefficients& coefficients) {
  const LionBlocks<LoopCodec, float> blocks{lion_scalars<float>(coefficients)};
  update_blocks<LoopCodec, 1>(values, gradient, numel, blocks, momentum);
}
TESSERA_FMA_TARGETS void lion8bit_update(double* values, const double* gradient,
                                         const CodedMoment& momentum, int64_t numel,
                                         const LionCoefficients& coefficients) {
  const LionBlocks<LoopCodec, double> blocks{lion_scalars<double>(coefficients)};
  update_blocks<LoopCodec, 1>(values, gradient, numel, blocks, momentum);
}

void adamw8bit_update(float* values, const float* gradient, const CodedMoment& moment1,
                      const CodedMoment& moment2, int64_t numel,
                      const AdamwCoefficients& coefficients) {
  if (has_wide_kernels()) {
    adamw8bit_update_wide(values, gradient, moment1, moment2, numel, coefficients);
  } else {
    adamw8bit_update_by_loops(values, gradient, moment1, moment2, numel, coefficients);
  }
}

void lion8bit_update(float* values, const float* gradient, const CodedMoment& momentum,
                     int64_t numel, const LionCoefficients& coefficients) {
  if (has_wide_kernels()) {
    lion8bit_update_wide(values, gradient, momentum, numel, coefficients);
  } else {
    lion8bit_update_by_loops(values, gradient, momentum, numel, coefficients);
  }
}

TESSERA_FMA_TARGETS void quantize(const float* values, const CodedMoment& moment, int64_t numel,
                                  bool is_signed) {
  if (is_signed) {
    quantize_by<SignedTree>(values, moment, numel);
  } else {
    quantize_by<UnsignedTree>(values, moment, numel);
  }
}

TESSERA_FMA_TARGETS void dequantize(const CodedMoment& moment, float* values, int64_t numel,
                                    bool is_signed) {
  if (is_signed) {
    dequantize_by<SignedTree>(moment, values, numel);
  } else {
    dequantize_by<UnsignedTree>(moment, values, numel);
  }
}

}  // namespace tessera::internal
