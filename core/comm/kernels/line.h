#pragma once

#include <cstdint>
#include <cstring>

#include "tessera/core/comm/kernels/reduce_kernels.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace tessera::internal::kernels {

inline constexpr int64_t kLineBytes = 64;

/// A cache line of numbers in registers. Note [Sums in registers] in reduce_kernels.cc.
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

}  // namespace tessera::internal::kernels
