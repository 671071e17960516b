#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "tessera/optim/eight_bit/dynamic_code.h"
#include "tessera/optim/eight_bit/kernels.h"

// Updates of blocks of elements. A Codec converts between codes and numbers, by instructions of its
// own choice:
//   decode<Tree>(codes, scale, T* moment)      converts 64 codes to 64 numbers
//   encode<Tree>(values, inverse, codes)       converts them back; inverse: 1 / scale
// All functions here are inlined into functions that are compiled for several targets. Each Codec
// is defined and used in one .cc file only: if two files that are compiled for different targets
// instantiated the same template, the linker would keep one copy, perhaps the one with instructions
// that the processor lacks. Loops are short and over elements of one width, so that the compiler
// vectorises them. Several blocks are updated before the first one is quantised, because quantising
// has to wait for the block's largest magnitude; the processor works on other blocks meanwhile. But
// a block is dequantised just before its update, so that the divisions of one block overlap with
// the integer operations of the next.
namespace tessera::internal {

[[gnu::always_inline]] inline const float* in_fp32(const float* values, float* /*memory*/) {
  return values;
}
[[gnu::always_inline]] inline const float* in_fp32(const double* values, float* memory) {
  for (int i = 0; i < kCodeBlock; ++i) memory[i] = static_cast<float>(values[i]);
  return memory;
}

template <typename T>
[[gnu::always_inline]] inline BlockScale scale_of(const T* moment) {
  alignas(64) float memory[kCodeBlock];
  const float* const values = in_fp32(moment, memory);
  int32_t largest = 0;
  for (int i = 0; i < kCodeBlock; ++i) {
    const int32_t bits = std::bit_cast<int32_t>(values[i]) & kMagnitudeBits;
    largest = bits > largest ? bits : largest;
  }
  return block_scale(largest);
}

/// Quantises kBlocks blocks of `moment` into the codes and scales of `to`.
template <typename Codec, typename Tree, int kBlocks, typename T>
[[gnu::always_inline]] inline void quantize_blocks(const T* moment, const CodedMoment& to) {
  float inverses[kBlocks];
  for (int block = 0; block < kBlocks; ++block) {
    const BlockScale by = scale_of(moment + block * kCodeBlock);
    inverses[block] = by.inverse;
    to.scales[block] = by.scale;
  }
  for (int block = 0; block < kBlocks; ++block) {
    alignas(64) float memory[kCodeBlock];
    Codec::template encode<Tree>(in_fp32(moment + block * kCodeBlock, memory), inverses[block],
                                 to.codes + block * kCodeBlock);
  }
}

template <typename Codec, typename T>
struct AdamwBlocks {
  AdamwScalars<T> by;

  template <int kBlocks>
  [[gnu::always_inline]] void update(T* __restrict values, const T* __restrict gradient,
                                     const CodedMoment& first, const CodedMoment& second) const {
    alignas(64) T moment1[kBlocks * kCodeBlock];
    alignas(64) T moment2[kBlocks * kCodeBlock];
    for (int block = 0; block < kBlocks; ++block) {
      const int64_t begin = block * kCodeBlock;
      Codec::template decode<SignedTree>(first.codes + begin, first.scales[block], moment1 + begin);
      Codec::template decode<UnsignedTree>(second.codes + begin, second.scales[block],
                                           moment2 + begin);
      for (int64_t i = begin; i < begin + kCodeBlock; ++i) {
        const AdamwElement<T> after =
            adamw_element({values[i], moment1[i], moment2[i]}, gradient[i], by);
        moment1[i] = after.moment1;
        moment2[i] = after.moment2;
        values[i] = after.value;
      }
    }
    quantize_blocks<Codec, SignedTree, kBlocks>(moment1, first);
    quantize_blocks<Codec, UnsignedTree, kBlocks>(moment2, second);
  }
};

template <typename Codec, typename T>
struct LionBlocks {
  LionScalars<T> by;

  template <int kBlocks>
  [[gnu::always_inline]] void update(T* __restrict values, const T* __restrict gradient,
                                     const CodedMoment& first) const {
    alignas(64) T momentum[kBlocks * kCodeBlock];
    for (int block = 0; block < kBlocks; ++block) {
      const int64_t begin = block * kCodeBlock;
      Codec::template decode<SignedTree>(first.codes + begin, first.scales[block],
                                         momentum + begin);
      for (int64_t i = begin; i < begin + kCodeBlock; ++i) {
        lion_element(values[i], gradient[i], momentum[i], by);
      }
    }
    quantize_blocks<Codec, SignedTree, kBlocks>(momentum, first);
  }
};

/// A copy of the codes of a last, shorter block, padded with zeros to a whole block. The destructor
/// copies the codes without the padding back.
template <typename Codec>
struct PartialMoment {
  [[gnu::always_inline]] PartialMoment(const CodedMoment& moment, int64_t count)
      : of(moment), numel(count) {
    std::copy_n(of.codes, numel, codes);
  }
  [[gnu::always_inline]] ~PartialMoment() { std::copy_n(codes, numel, of.codes); }
  PartialMoment(const PartialMoment&) = delete;
  PartialMoment& operator=(const PartialMoment&) = delete;
  [[gnu::always_inline]] CodedMoment whole() { return {codes, of.scales}; }

  CodedMoment of;
  int64_t numel;
  uint8_t codes[kCodeBlock] = {};
};

template <typename Codec, typename T, typename Blocks, typename... Moments>
[[gnu::always_inline]] inline void update_partial(T* values, const T* gradient, int64_t numel,
                                                  const Blocks& blocks, const Moments&... moments) {
  T whole[kCodeBlock] = {};
  T whole_gradient[kCodeBlock] = {};
  std::copy_n(values, numel, whole);
  std::copy_n(gradient, numel, whole_gradient);
  blocks.template update<1>(whole, whole_gradient, PartialMoment<Codec>(moments, numel).whole()...);
  std::copy_n(whole, numel, values);
}

[[gnu::always_inline]] inline CodedMoment blocks_behind(const CodedMoment& moment,
                                                        int64_t elements) {
  return {moment.codes + elements, moment.scales + elements / kCodeBlock};
}

/// Updates `numel` elements: first groups of kTogether blocks, then single blocks, then a last,
/// shorter block.
template <typename Codec, int kTogether, typename T, typename Blocks, typename... Moments>
[[gnu::always_inline]] inline void update_blocks(T* values, const T* gradient, int64_t numel,
                                                 const Blocks& blocks, const Moments&... moments) {
  constexpr int64_t kGroup = kTogether * kCodeBlock;
  int64_t done = 0;
  for (; done + kGroup <= numel; done += kGroup) {
    blocks.template update<kTogether>(values + done, gradient + done,
                                      blocks_behind(moments, done)...);
  }
  for (; done + kCodeBlock <= numel; done += kCodeBlock) {
    blocks.template update<1>(values + done, gradient + done, blocks_behind(moments, done)...);
  }
  if (done == numel) return;
  update_partial<Codec>(values + done, gradient + done, numel - done, blocks,
                        blocks_behind(moments, done)...);
}

}  // namespace tessera::internal
