#pragma once

#include <cstdint>

#include "tessera/core/numbers/device_code.h"
#include "tessera/core/numbers/exact_digits.h"
#include "tessera/optim/cuda/abi.h"
#include "tessera/optim/cuda/narrow.h"
#include "tessera/optim/cuda/walk.h"

namespace tessera::internal::cuda {

// --- Accumulate and cast ---

template <typename Gradient>
struct AccumulateVisitor {
  float* sum;
  const Gradient* gradient;

  TESSERA_DEVICE_CODE void single(int64_t i) const { sum[i] += widen(gradient[i]); }
  TESSERA_DEVICE_CODE void pack(int64_t begin) const {
    const Pack<Gradient> more = load_pack(gradient + begin);
    Pack<float> sums = load_pack(sum + begin);
    for (int i = 0; i < kPackNumel; ++i) sums.at[i] += widen(more.at[i]);
    store_pack(sum + begin, sums);
  }
};

/// Does one thread's share of tessera_cuda_accumulate.
template <typename Gradient>
TESSERA_DEVICE_CODE inline void accumulate_body(float* sum, const Gradient* gradient, int64_t numel,
                                                Worker thread) {
  walk(pack_range(numel, sum, gradient), thread, AccumulateVisitor<Gradient>{sum, gradient});
}

template <typename Target>
struct CastVisitor {
  Target* target;
  const float* values;

  TESSERA_DEVICE_CODE void single(int64_t i) const { target[i] = narrow<Target>(values[i]); }
  TESSERA_DEVICE_CODE void pack(int64_t begin) const {
    const Pack<float> wide = load_pack(values + begin);
    Pack<Target> cast;
    for (int i = 0; i < kPackNumel; ++i) cast.at[i] = narrow<Target>(wide.at[i]);
    store_pack(target + begin, cast);
  }
};

/// Does one thread's share of tessera_cuda_cast.
template <typename Target>
TESSERA_DEVICE_CODE inline void cast_body(Target* target, const float* values, int64_t numel,
                                          Worker thread) {
  walk(pack_range(numel, target, values), thread, CastVisitor<Target>{target, values});
}

// --- Elements that are not finite ---

template <typename Gradient>
struct CountVisitor {
  const Gradient* gradient;
  int64_t* count;

  TESSERA_DEVICE_CODE void single(int64_t i) const { *count += is_non_finite(gradient[i]) ? 1 : 0; }
  TESSERA_DEVICE_CODE void pack(int64_t begin) const {
    const Pack<Gradient> elements = load_pack(gradient + begin);
    for (int i = 0; i < kPackNumel; ++i) *count += is_non_finite(elements.at[i]) ? 1 : 0;
  }
};

/// Does one thread's share of tessera_cuda_count_non_finite: thread blocks take pieces in turn, and
/// the threads of a block share a piece. `sink.add(parameter, amount)`, an atomic addition, is
/// called only if the thread finds NaN or infinite elements.
template <typename Gradient, typename Sink>
TESSERA_DEVICE_CODE inline void count_body(const Gradient* gradient, const Piece* pieces,
                                           int64_t piece_count, Worker block, Worker thread,
                                           Sink& sink) {
  for (int64_t i = block.index; i < piece_count; i += block.count) {
    const Piece piece = pieces[i];
    const Gradient* own = gradient + piece.begin;
    int64_t count = 0;
    walk(pack_range(piece.numel, own), thread, CountVisitor<Gradient>{own, &count});
    if (count != 0) sink.add(static_cast<size_t>(piece.parameter), count);
  }
}

// --- Squares ---

/// The sum of squares of a 64-element block is formed in 8 lanes, with element i in lane i % 8, as
/// in core/step/grad_norm_kernels. Here each lane is a thread, so that a warp reads whole sectors.
inline constexpr int kSquareBlockElements = 64;
inline constexpr int kSquareLanes = 8;

/// Returns the sum of squares of the elements in lane `lane` of a block of `numel` elements.
template <typename Gradient>
TESSERA_DEVICE_CODE inline double square_lane(const Gradient* block, int numel, int lane) {
  constexpr int kRounds = kSquareBlockElements / kSquareLanes;
  double sum = 0.0;
  if (numel == kSquareBlockElements) {
    Gradient elements[kRounds];  // all are loaded before the first one is used
    for (int i = 0; i < kRounds; ++i) elements[i] = block[i * kSquareLanes + lane];
    for (int i = 0; i < kRounds; ++i) {
      const double value = widen(elements[i]);
      sum += value * value;
    }
    return sum;
  }
  for (int i = lane; i < numel; i += kSquareLanes) {
    const double value = widen(block[i]);
    sum += value * value;
  }
  return sum;
}

/// Collects one thread's terms of an ExactSum in registers as long as the terms fall on the same
/// digits. They nearly always do, so `sink.add(word, amount)`, an atomic addition, is called
/// rarely.
class ExactWindow {
 public:
  template <typename Sink>
  TESSERA_DEVICE_CODE void add(double term, Sink& sink) {
    if (!exact_is_finite(term)) {
      sink.add(exact_count_word(term), 1);
      return;
    }
    const ExactTerm digits = exact_term(term);
    if (digits.word != word_) {
      flush(sink);
      word_ = digits.word;
    }
    low_ += digits.low;
    middle_ += digits.middle;
    high_ += digits.high;
  }

  template <typename Sink>
  TESSERA_DEVICE_CODE void flush(Sink& sink) {
    if (low_ != 0) sink.add(word_, low_);
    if (middle_ != 0) sink.add(word_ + 1, middle_);
    if (high_ != 0) sink.add(word_ + 2, high_);
    low_ = middle_ = high_ = 0;
  }

 private:
  uint32_t word_ = 0;
  int64_t low_ = 0;
  int64_t middle_ = 0;
  int64_t high_ = 0;
};

/// Does one thread's share of tessera_cuda_add_squares: thread blocks take pieces in turn, and
/// groups of kSquareLanes threads take the 64-element blocks of a piece in turn. `lanes.sum(block,
/// numel)` adds the square_lane()s of the group's threads 0 to 7 as ((0 + 1) + (2 + 3)) + ((4 + 5)
/// + (6 + 7)). `lanes.leads()` is true in the one thread of a group that adds this sum to the
/// total.
template <typename Gradient, typename Lanes, typename Sink>
TESSERA_DEVICE_CODE inline void square_body(const Gradient* gradient, const Piece* pieces,
                                            int64_t piece_count, Worker block, Worker group,
                                            const Lanes& lanes, Sink& sink) {
  ExactWindow window;
  for (int64_t i = block.index; i < piece_count; i += block.count) {
    const Piece piece = pieces[i];
    for (int64_t begin = group.index * kSquareBlockElements; begin < piece.numel;
         begin += group.count * kSquareBlockElements) {
      const int64_t rest = piece.numel - begin;
      const int numel = rest < kSquareBlockElements ? static_cast<int>(rest) : kSquareBlockElements;
      const double sum = lanes.sum(gradient + piece.begin + begin, numel);
      if (lanes.leads()) window.add(sum, sink);
    }
  }
  window.flush(sink);
}

}  // namespace tessera::internal::cuda
