#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "tessera/core/comm/kernels/reduce_kernels.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace tessera::internal::kernels {

inline constexpr int64_t kLineBytes = 64;

/// A cache line of numbers, in registers. See Note [Sums in registers] in reduce_kernels.cc.
template <typename T>
struct Line {
  typedef T Elements __attribute__((vector_size(kLineBytes)));
  Elements elements;

  [[gnu::always_inline]] void load(const char* from) { std::memcpy(&elements, from, kLineBytes); }
  [[gnu::always_inline]] void add(const char* from) {
    Elements other;
    std::memcpy(&other, from, kLineBytes);
    elements += other;
  }
  template <Stores kStores>
  [[gnu::always_inline]] void store(char* to) const {
#ifdef __SSE2__
    if constexpr (kStores == Stores::kStreaming) {
      constexpr int kPieces = kLineBytes / sizeof(__m128i);
      __m128i pieces[kPieces];
      std::memcpy(pieces, &elements, kLineBytes);
      auto* const place = reinterpret_cast<__m128i*>(to);
      for (int i = 0; i < kPieces; ++i) _mm_stream_si128(place + i, pieces[i]);
      return;
    }
#endif
    std::memcpy(to, &elements, kLineBytes);
  }
};

// The functions below sum the same element of several sources in the order of
// SumOrder::kBinaryTree. The number of sources must be a power of two. Each source is read once, as
// in a sum in rank order. The functions are inlined into code for several vector widths.

/// The most leaves of the tree that are summed in registers at once: with more, some partial sums
/// would spill to the first-level cache.
inline constexpr int kLeavesInRegisters = 8;

/// The most levels of a tree. The number of sources is an int, so 32 are enough.
inline constexpr int kMaxTreeDepth = 32;

/// Sums the cache lines that lie at byte `at` of sources 0 to kLeaves - 1 into `sum`.
template <typename T, int kLeaves>
[[gnu::always_inline]] inline void add_leaves(const char* const* sources, int64_t at,
                                              Line<T>& sum) {
  if constexpr (kLeaves == 2) {
    sum.load(sources[0] + at);
    sum.add(sources[1] + at);
  } else {
    Line<T> right;
    add_leaves<T, kLeaves / 2>(sources, at, sum);
    add_leaves<T, kLeaves / 2>(sources + kLeaves / 2, at, right);
    sum.elements += right.elements;
  }
}

/// Sums the cache lines that lie at byte `at` of sources 0 to count - 1 into `sum`. `count` must be
/// a power of two times kLeaves.
template <typename T, int kLeaves>
[[gnu::always_inline]] inline void add_as_tree(const char* const* sources, int count, int64_t at,
                                               Line<T>& sum) {
  add_leaves<T, kLeaves>(sources, at, sum);
  if (count == kLeaves) return;
  // Sums groups of kLeaves leaves like a binary counter counts: for each digit i that is 1 in the
  // number of groups summed so far, partial[i] is the sum of 2^i groups.
  Line<T> partial[kMaxTreeDepth];
  partial[0] = sum;
  const int groups = count / kLeaves;
  for (int group = 1; group < groups; ++group) {
    add_leaves<T, kLeaves>(sources + group * kLeaves, at, sum);
    const int carries = std::countr_one(static_cast<unsigned>(group));
    for (int i = 0; i < carries; ++i) sum.elements = partial[i].elements + sum.elements;
    partial[carries] = sum;
  }
}

/// Sums element `index` of sources[0, count).
template <typename T>
[[gnu::always_inline]] inline T add_as_tree(const char* const* sources, int count, int64_t index) {
  T partial[kMaxTreeDepth];
  T sum{};
  for (int leaf = 0; leaf < count; ++leaf) {
    std::memcpy(&sum, sources[leaf] + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
    const int carries = std::countr_one(static_cast<unsigned>(leaf));
    for (int i = 0; i < carries; ++i) sum = partial[i] + sum;
    partial[carries] = sum;
  }
  return sum;
}

}  // namespace tessera::internal::kernels
