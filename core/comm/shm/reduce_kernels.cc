#include "tessera/core/comm/shm/reduce_kernels.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

namespace tessera::shm {
namespace {

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
  static Accumulator combine(Accumulator sum, Value value) {
    return static_cast<Accumulator>(sum + static_cast<Accumulator>(value));
  }
};

struct Min {
  template <typename Value, typename Accumulator>
  static Accumulator combine(Accumulator least, Value value) {
    return pick(static_cast<Value>(least), value);
  }
  template <typename Value>
  static Value pick(Value least, Value value) {
    return (value < least || value != value) ? value : least;  // a NaN is taken, and never given up
  }
};

struct Max {
  template <typename Value, typename Accumulator>
  static Accumulator combine(Accumulator greatest, Value value) {
    return pick(static_cast<Value>(greatest), value);
  }
  template <typename Value>
  static Value pick(Value greatest, Value value) {
    return (value > greatest || value != value) ? value : greatest;
  }
};

/// What an element is compared or added as: itself, or fp32 for the 16-bit types.
template <typename T>
using Value =
    std::conditional_t<std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>, float, T>;

template <typename T, typename Operation>
void combine_block(typename AccumulatorOf<T>::type* __restrict accumulator,
                   const T* __restrict source, int64_t numel) {
  using Accumulator = typename AccumulatorOf<T>::type;
  for (int64_t i = 0; i < numel; ++i) {
    accumulator[i] = Operation::template combine<Value<T>, Accumulator>(
        accumulator[i], static_cast<Value<T>>(source[i]));
  }
}

/// The same for the first two sources, which saves a pass over the accumulator.
template <typename T, typename Operation>
void combine_first_two(typename AccumulatorOf<T>::type* __restrict accumulator, const T* first,
                       const T* second, int64_t numel) {
  using Accumulator = typename AccumulatorOf<T>::type;
  for (int64_t i = 0; i < numel; ++i) {
    accumulator[i] = Operation::template combine<Value<T>, Accumulator>(
        static_cast<Accumulator>(static_cast<Value<T>>(first[i])),
        static_cast<Value<T>>(second[i]));
  }
}

/// Division by a power of two and multiplication with its inverse round the same exact number,
/// hence give the same bits; the multiplication is several times as fast.
template <typename Accumulator>
void divide_block(Accumulator* accumulator, int64_t numel, int ranks) {
  const auto divisor = static_cast<Accumulator>(ranks);
  if ((ranks & (ranks - 1)) == 0) {
    const Accumulator inverse = 1 / divisor;
    for (int64_t i = 0; i < numel; ++i) accumulator[i] *= inverse;
  } else {
    for (int64_t i = 0; i < numel; ++i) accumulator[i] /= divisor;
  }
}

template <typename T>
void store_block(T* __restrict target, const typename AccumulatorOf<T>::type* __restrict result,
                 int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) target[i] = static_cast<T>(result[i]);
}

template <typename T, typename Operation>
void reduce_as(const char* const* sources, int ranks, char* const* targets, int target_count,
               int64_t numel, bool divide) {
  using Accumulator = typename AccumulatorOf<T>::type;
  alignas(64) Accumulator accumulator[kBlockNumel];
  for (int64_t begin = 0; begin < numel; begin += kBlockNumel) {
    const int64_t count = std::min(kBlockNumel, numel - begin);
    const T* first = reinterpret_cast<const T*>(sources[0]) + begin;
    if (ranks == 1) {
      for (int64_t i = 0; i < count; ++i) accumulator[i] = static_cast<Value<T>>(first[i]);
    } else {
      combine_first_two<T, Operation>(accumulator, first,
                                      reinterpret_cast<const T*>(sources[1]) + begin, count);
    }
    for (int rank = 2; rank < ranks; ++rank) {
      combine_block<T, Operation>(accumulator, reinterpret_cast<const T*>(sources[rank]) + begin,
                                  count);
    }
    if constexpr (std::is_floating_point_v<Accumulator>) {
      if (divide) divide_block(accumulator, count, ranks);
    }
    T* result = reinterpret_cast<T*>(targets[0]) + begin;
    store_block<T>(result, accumulator, count);
    for (int target = 1; target < target_count; ++target) {
      std::memcpy(reinterpret_cast<T*>(targets[target]) + begin, result, count * sizeof(T));
    }
  }
}

template <typename T>
void reduce_dtype(ReduceOp op, const char* const* sources, int ranks, char* const* targets,
                  int target_count, int64_t numel) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_as<T, Sum>(sources, ranks, targets, target_count, numel, false);
    case ReduceOp::kAvg:
      return reduce_as<T, Sum>(sources, ranks, targets, target_count, numel, true);
    case ReduceOp::kMin:
      return reduce_as<T, Min>(sources, ranks, targets, target_count, numel, false);
    case ReduceOp::kMax:
      return reduce_as<T, Max>(sources, ranks, targets, target_count, numel, false);
  }
}

}  // namespace

void reduce(c10::ScalarType dtype, ReduceOp op, const char* const* sources, int ranks,
            char* const* targets, int target_count, int64_t numel) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return reduce_dtype<float>(op, sources, ranks, targets, target_count, numel);
    case c10::ScalarType::Double:
      return reduce_dtype<double>(op, sources, ranks, targets, target_count, numel);
    case c10::ScalarType::BFloat16:
      return reduce_dtype<c10::BFloat16>(op, sources, ranks, targets, target_count, numel);
    case c10::ScalarType::Half:
      return reduce_dtype<c10::Half>(op, sources, ranks, targets, target_count, numel);
    case c10::ScalarType::Long:
      return reduce_dtype<int64_t>(op, sources, ranks, targets, target_count, numel);
    case c10::ScalarType::Int:
      return reduce_dtype<int32_t>(op, sources, ranks, targets, target_count, numel);
    case c10::ScalarType::Byte:
      return reduce_dtype<uint8_t>(op, sources, ranks, targets, target_count, numel);
    default:
      TORCH_CHECK(false, "[comm] reduce: got ", c10::toString(dtype),
                  ", expected a dtype that collectives support; convert it first");
  }
}

}  // namespace tessera::shm
