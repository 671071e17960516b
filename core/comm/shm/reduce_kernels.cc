#include "tessera/core/comm/shm/reduce_kernels.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include "tessera/core/step/narrow_float.h"
#include "tessera/core/step/vector_targets.h"

namespace tessera::shm {
namespace {

// Templates cannot be compiled for several vector widths, so all of them are inlined into one
// marked function per dtype.

// The accumulator of one block stays in the first-level cache while all sources pass through it.
constexpr int64_t kBlockNumel = 1024;

template <typename T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<c10::BFloat16> {
  using type = float;
};
template <>
struct AccumulatorOf<c10::Half> {
  using type = float;
};
// Signed overflow is undefined in C++; unsigned arithmetic wraps as integer tensors do.
template <>
struct AccumulatorOf<int64_t> {
  using type = uint64_t;
};
template <>
struct AccumulatorOf<int32_t> {
  using type = uint32_t;
};

struct Sum {
  template <typename Value, typename Accumulator>
  [[gnu::always_inline]] static Accumulator combine(Accumulator sum, Value value) {
    return static_cast<Accumulator>(sum + static_cast<Accumulator>(value));
  }
};

struct Min {
  template <typename Value, typename Accumulator>
  [[gnu::always_inline]] static Accumulator combine(Accumulator least, Value value) {
    return pick(static_cast<Value>(least), value);
  }
  template <typename Value>
  [[gnu::always_inline]] static Value pick(Value least, Value value) {
    return ((value < least) | (value != value)) ? value
                                                : least;  // a NaN is taken, and never given up
  }
};

struct Max {
  template <typename Value, typename Accumulator>
  [[gnu::always_inline]] static Accumulator combine(Accumulator greatest, Value value) {
    return pick(static_cast<Value>(greatest), value);
  }
  template <typename Value>
  [[gnu::always_inline]] static Value pick(Value greatest, Value value) {
    return ((value > greatest) | (value != value)) ? value : greatest;
  }
};

template <typename T>
constexpr bool kIsNarrow = std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>;

/// What an element is compared or added as: itself, or fp32 for the 16-bit types.
template <typename T>
using Value = std::conditional_t<kIsNarrow<T>, float, T>;

template <typename T>
[[gnu::always_inline]] inline Value<T> value_of(T element) {
  if constexpr (kIsNarrow<T>) {
    return widen(element);
  } else {
    return element;
  }
}

template <typename T, typename Operation>
[[gnu::always_inline]] inline void combine_block(
    typename AccumulatorOf<T>::type* __restrict accumulator, const T* __restrict source,
    int64_t numel) {
  using Accumulator = typename AccumulatorOf<T>::type;
  for (int64_t i = 0; i < numel; ++i) {
    accumulator[i] =
        Operation::template combine<Value<T>, Accumulator>(accumulator[i], value_of(source[i]));
  }
}

/// The same for the first two sources, which saves a pass over the accumulator.
template <typename T, typename Operation>
[[gnu::always_inline]] inline void combine_first_two(
    typename AccumulatorOf<T>::type* __restrict accumulator, const T* first, const T* second,
    int64_t numel) {
  using Accumulator = typename AccumulatorOf<T>::type;
  for (int64_t i = 0; i < numel; ++i) {
    accumulator[i] = Operation::template combine<Value<T>, Accumulator>(
        static_cast<Accumulator>(value_of(first[i])), value_of(second[i]));
  }
}

/// Division by a power of two and multiplication with its inverse round the same exact number,
/// hence give the same bits; the multiplication is several times as fast.
template <typename Accumulator>
[[gnu::always_inline]] inline void divide_block(Accumulator* accumulator, int64_t numel,
                                                int ranks) {
  const auto divisor = static_cast<Accumulator>(ranks);
  if ((ranks & (ranks - 1)) == 0) {
    const Accumulator inverse = 1 / divisor;
    for (int64_t i = 0; i < numel; ++i) accumulator[i] *= inverse;
  } else {
    for (int64_t i = 0; i < numel; ++i) accumulator[i] /= divisor;
  }
}

template <typename T>
[[gnu::always_inline]] inline void store_block(
    T* __restrict target, const typename AccumulatorOf<T>::type* __restrict result, int64_t numel) {
  if constexpr (kIsNarrow<T>) {
    for (int64_t i = 0; i < numel; ++i) target[i] = narrow<T>(result[i]);
  } else {
    for (int64_t i = 0; i < numel; ++i) target[i] = static_cast<T>(result[i]);
  }
}

/// What every rank gave, where it goes, and what becomes of it.
struct Job {
  ReduceOp op;
  const char* const* sources;
  int ranks;
  char* const* targets;
  int target_count;
  int64_t numel;
};

template <typename T, typename Operation>
[[gnu::always_inline]] inline void reduce_as(const Job& job) {
  using Accumulator = typename AccumulatorOf<T>::type;
  alignas(64) Accumulator accumulator[kBlockNumel];
  for (int64_t begin = 0; begin < job.numel; begin += kBlockNumel) {
    const int64_t count = std::min(kBlockNumel, job.numel - begin);
    const auto source = [&](int rank) {
      return reinterpret_cast<const T*>(job.sources[rank]) + begin;
    };
    const T* first = source(0);
    if (job.ranks == 1) {
      for (int64_t i = 0; i < count; ++i) accumulator[i] = value_of(first[i]);
    } else {
      combine_first_two<T, Operation>(accumulator, first, source(1), count);
    }
    for (int rank = 2; rank < job.ranks; ++rank) {
      combine_block<T, Operation>(accumulator, source(rank), count);
    }
    if constexpr (std::is_floating_point_v<Accumulator>) {
      if (job.op == ReduceOp::kAvg) divide_block(accumulator, count, job.ranks);
    }
    T* result = reinterpret_cast<T*>(job.targets[0]) + begin;
    store_block<T>(result, accumulator, count);
    for (int target = 1; target < job.target_count; ++target) {
      std::memcpy(reinterpret_cast<T*>(job.targets[target]) + begin, result, count * sizeof(T));
    }
  }
}

template <typename T>
[[gnu::always_inline]] inline void run(const Job& job) {
  switch (job.op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return reduce_as<T, Sum>(job);
    case ReduceOp::kMin:
      return reduce_as<T, Min>(job);
    case ReduceOp::kMax:
      return reduce_as<T, Max>(job);
  }
}

TESSERA_VECTOR_TARGETS void run_float(const Job& job) { run<float>(job); }
TESSERA_VECTOR_TARGETS void run_double(const Job& job) { run<double>(job); }
TESSERA_VECTOR_TARGETS void run_bfloat16(const Job& job) { run<c10::BFloat16>(job); }
TESSERA_VECTOR_TARGETS void run_half(const Job& job) { run<c10::Half>(job); }
TESSERA_VECTOR_TARGETS void run_int64(const Job& job) { run<int64_t>(job); }
TESSERA_VECTOR_TARGETS void run_int32(const Job& job) { run<int32_t>(job); }
TESSERA_VECTOR_TARGETS void run_uint8(const Job& job) { run<uint8_t>(job); }

}  // namespace

void reduce(c10::ScalarType dtype, ReduceOp op, const char* const* sources, int ranks,
            char* const* targets, int target_count, int64_t numel) {
  const Job job{op, sources, ranks, targets, target_count, numel};
  switch (dtype) {
    case c10::ScalarType::Float:
      return run_float(job);
    case c10::ScalarType::Double:
      return run_double(job);
    case c10::ScalarType::BFloat16:
      return run_bfloat16(job);
    case c10::ScalarType::Half:
      return run_half(job);
    case c10::ScalarType::Long:
      return run_int64(job);
    case c10::ScalarType::Int:
      return run_int32(job);
    case c10::ScalarType::Byte:
      return run_uint8(job);
    default:
      TORCH_CHECK(false, "[comm] reduce: got ", c10::toString(dtype),
                  ", expected a dtype that collectives support; convert it first");
  }
}

}  // namespace tessera::shm
