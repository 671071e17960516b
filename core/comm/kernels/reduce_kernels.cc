#include "tessera/core/comm/kernels/reduce_kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include "tessera/core/comm/kernels/tree_sum.h"
#include "tessera/core/numbers/narrow_float.h"
#include "tessera/core/numbers/vector_targets.h"

namespace tessera::internal::kernels {
namespace {

// A template cannot be compiled for several vector widths. So all templates below are inlined into
// one function per dtype, which is marked TESSERA_VECTOR_TARGETS.

// reduce_range() combines this many elements at a time, so that their accumulator stays in the
// first-level cache while all sources are added to it.
constexpr int64_t kBlockNumel = 1024;

template <typename T>
constexpr bool kIsNarrow = std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>;

/// The type in which elements are compared and added: their own, or fp32 for the 16-bit types.
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

struct Sum {
  template <typename V>
  [[gnu::always_inline]] static V combine(V sum, V value) {
    return sum + value;
  }
};

// Min and Max give NaN if either value is NaN: they take `value` if it is NaN, and otherwise keep a
// NaN that they have already, because every comparison with NaN is false.
struct Min {
  template <typename V>
  [[gnu::always_inline]] static V combine(V least, V value) {
    return ((value < least) | (value != value)) ? value : least;
  }
};
struct Max {
  template <typename V>
  [[gnu::always_inline]] static V combine(V greatest, V value) {
    return ((value > greatest) | (value != value)) ? value : greatest;
  }
};

template <typename T, typename Operation>
[[gnu::always_inline]] inline void combine_block(Value<T>* __restrict accumulator,
                                                 const T* __restrict source, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) {
    accumulator[i] = Operation::combine(accumulator[i], value_of(source[i]));
  }
}

/// Like combine_block(), but combines the first two sources. This saves a pass over the
/// accumulator.
template <typename T, typename Operation>
[[gnu::always_inline]] inline void combine_first_two(Value<T>* __restrict accumulator,
                                                     const T* first, const T* second,
                                                     int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) {
    accumulator[i] = Operation::combine(value_of(first[i]), value_of(second[i]));
  }
}

/// Returns true if `divisor` is a power of two in a range where its inverse is normal. Multiplying
/// by the inverse then gives the same bits as dividing, because both round the same exact number,
/// and is several times as fast.
template <typename V>
[[gnu::always_inline]] inline bool has_inverse(V divisor) {
  using Bits = std::conditional_t<sizeof(V) == sizeof(uint32_t), uint32_t, uint64_t>;
  constexpr Bits kMantissa = (Bits{1} << (std::numeric_limits<V>::digits - 1)) - 1;
  return (std::bit_cast<Bits>(divisor) & kMantissa) == 0 && divisor > V{0x1p-100} &&
         divisor < V{0x1p100};
}

template <typename V>
[[gnu::always_inline]] inline void divide_block(V* accumulator, int64_t numel, V divisor) {
  if (has_inverse(divisor)) {
    const V inverse = 1 / divisor;
    for (int64_t i = 0; i < numel; ++i) accumulator[i] *= inverse;
  } else {
    for (int64_t i = 0; i < numel; ++i) accumulator[i] /= divisor;
  }
}

template <typename T>
[[gnu::always_inline]] inline void store_block(T* __restrict target,
                                               const Value<T>* __restrict result, int64_t numel) {
  if constexpr (kIsNarrow<T>) {
    for (int64_t i = 0; i < numel; ++i) target[i] = narrow<T>(result[i]);
  } else {
    for (int64_t i = 0; i < numel; ++i) target[i] = result[i];
  }
}

/// The sources, targets and options of one reduction.
struct Job {
  ReduceOp op;
  double divisor;
  const char* const* sources;
  int ranks;
  char* const* targets;
  int target_count;
  int64_t numel;
  Stores stores;
  SumOrder order;
};

/// Reduces elements [first_element, end).
template <typename T, typename Operation>
[[gnu::always_inline]] inline void reduce_range(const Job& job, int64_t first_element,
                                                int64_t end) {
  alignas(kLineBytes) Value<T> accumulator[kBlockNumel];
  for (int64_t begin = first_element; begin < end; begin += kBlockNumel) {
    const int64_t count = std::min(kBlockNumel, end - begin);
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
    if (job.op == ReduceOp::kAvg) {
      divide_block(accumulator, count, static_cast<Value<T>>(job.divisor));
    }
    T* result = reinterpret_cast<T*>(job.targets[0]) + begin;
    store_block<T>(result, accumulator, count);
    for (int target = 1; target < job.target_count; ++target) {
      std::memcpy(reinterpret_cast<T*>(job.targets[target]) + begin, result, count * sizeof(T));
    }
  }
}

// Note [Sums in registers]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// Sums in the elements' own precision (fp32, fp64) are on training's critical path and bound by
// memory bandwidth. A block-sized accumulator would cost half of the bandwidth, in the caches and
// beyond, because its passes alternate between reading and writing. Here a few cache lines of every
// source are summed in registers and written, so reads and writes overlap. Vectors are passed by
// reference only, because the calling convention for vectors by value depends on the target.
constexpr int kLinesAtOnce = 4;

/// Sums elements [begin, begin + count) in registers. `count` must be a multiple of the elements in
/// kLinesAtOnce cache lines. With kStreaming, the target's element `begin` must start a cache line.
/// kLeaves: how many leaves of the tree are summed at once; 0 sums in rank order instead.
template <typename T, Stores kStores, int kLeaves>
[[gnu::always_inline]] inline void sum_lines(const Job& job, int64_t begin, int64_t count) {
  constexpr int64_t kStepBytes = kLinesAtOnce * kLineBytes;
  const bool divides = job.op == ReduceOp::kAvg;
  const auto divisor = static_cast<T>(job.divisor);
  const T inverse = 1 / divisor;
  const bool multiplies = has_inverse(divisor);
  const auto element = static_cast<int64_t>(sizeof(T));
  const int64_t end_bytes = (begin + count) * element;
  for (int64_t at = begin * element; at < end_bytes; at += kStepBytes) {
    Line<T> lines[kLinesAtOnce];
    if constexpr (kLeaves > 0) {
      for (int i = 0; i < kLinesAtOnce; ++i) {
        add_as_tree<T, kLeaves>(job.sources, job.ranks, at + i * kLineBytes, lines[i]);
      }
    } else {
      for (int i = 0; i < kLinesAtOnce; ++i) lines[i].load(job.sources[0] + at + i * kLineBytes);
      for (int rank = 1; rank < job.ranks; ++rank) {
        const char* const source = job.sources[rank] + at;
        for (int i = 0; i < kLinesAtOnce; ++i) lines[i].add(source + i * kLineBytes);
      }
    }
    if (divides && multiplies) {
      for (Line<T>& line : lines) line.elements *= inverse;
    } else if (divides) {
      for (Line<T>& line : lines) line.elements /= divisor;
    }
    for (int target = 0; target < job.target_count; ++target) {
      char* const place = job.targets[target] + at;
      for (int i = 0; i < kLinesAtOnce; ++i) {
        lines[i].template store<kStores>(place + i * kLineBytes);
      }
    }
  }
#ifdef __SSE2__
  // A later release store does not order streaming stores.
  if constexpr (kStores == Stores::kStreaming) _mm_sfence();
#endif
}

/// Sums elements [begin, end), which need not fill whole lines.
template <typename T, int kLeaves>
[[gnu::always_inline]] inline void sum_elements(const Job& job, int64_t begin, int64_t end) {
  if constexpr (kLeaves == 0) return reduce_range<T, Sum>(job, begin, end);
  for (int64_t i = begin; i < end; ++i) {
    T value = add_as_tree<T>(job.sources, job.ranks, i);
    if (job.op == ReduceOp::kAvg) value /= static_cast<T>(job.divisor);
    for (int target = 0; target < job.target_count; ++target) {
      std::memcpy(job.targets[target] + i * sizeof(T), &value, sizeof(T));
    }
  }
}

/// Sums all elements: whole lines with sum_lines(), the rest with sum_elements().
/// See Note [Sums in registers].
template <typename T, int kLeaves>
[[gnu::always_inline]] inline void sum_in_order(const Job& job) {
  constexpr int64_t kStepNumel = kLinesAtOnce * kLineBytes / static_cast<int64_t>(sizeof(T));
  int64_t head = 0;
  if (job.stores == Stores::kStreaming) {
    const auto past_line =
        static_cast<int64_t>(reinterpret_cast<uintptr_t>(job.targets[0]) % kLineBytes);
    const int64_t missing_bytes = (kLineBytes - past_line) % kLineBytes;
    head = std::min(missing_bytes / static_cast<int64_t>(sizeof(T)), job.numel);
  }
  const int64_t whole = (job.numel - head) / kStepNumel * kStepNumel;
  sum_elements<T, kLeaves>(job, 0, head);
  if (job.stores == Stores::kStreaming) {
    sum_lines<T, Stores::kStreaming, kLeaves>(job, head, whole);
  } else {
    sum_lines<T, Stores::kCached, kLeaves>(job, head, whole);
  }
  sum_elements<T, kLeaves>(job, head + whole, job.numel);
}

template <typename T>
[[gnu::always_inline]] inline void sum(const Job& job) {
  // Two sources have only one order.
  if (job.order == SumOrder::kRanks || job.ranks <= 2) return sum_in_order<T, 0>(job);
  if (job.ranks == 4) return sum_in_order<T, 4>(job);
  sum_in_order<T, kLeavesInRegisters>(job);
}

template <typename T>
[[gnu::always_inline]] inline void run(const Job& job) {
  switch (job.op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      if constexpr (kIsNarrow<T>) {
        return reduce_range<T, Sum>(job, 0, job.numel);
      } else {
        return sum<T>(job);
      }
    case ReduceOp::kMin:
      return reduce_range<T, Min>(job, 0, job.numel);
    case ReduceOp::kMax:
      return reduce_range<T, Max>(job, 0, job.numel);
    default:  // handled by reduce_plainly()
      return;
  }
}

TESSERA_VECTOR_TARGETS void run_float(const Job& job) { run<float>(job); }
TESSERA_VECTOR_TARGETS void run_double(const Job& job) { run<double>(job); }
TESSERA_VECTOR_TARGETS void run_bfloat16(const Job& job) { run<c10::BFloat16>(job); }
TESSERA_VECTOR_TARGETS void run_half(const Job& job) { run<c10::Half>(job); }

// reduce_plainly() combines a block of this many elements before it writes the block, because
// targets may be sources. LibTorch does not split so few elements among threads.
constexpr int64_t kPlainBlockNumel = 8192;

/// Returns a copy of `numel` elements in the dtype in which they are combined.
at::Tensor operand(const char* memory, int64_t numel, c10::ScalarType dtype) {
  const auto as = [&](c10::ScalarType type) {
    return at::from_blob(const_cast<char*>(memory), {numel}, type);
  };
  // Memory may hold any bits, and only 0 is false.
  if (dtype == c10::ScalarType::Bool) return as(c10::ScalarType::Byte).ne(0);
  const bool is_narrow = dtype == c10::ScalarType::BFloat16 || dtype == c10::ScalarType::Half;
  return as(dtype).to(is_narrow ? c10::ScalarType::Float : dtype, /*non_blocking=*/false,
                      /*copy=*/true);
}

at::Tensor combined(ReduceOp op, const at::Tensor& one, const at::Tensor& other) {
  switch (op) {
    case ReduceOp::kSum:
      return one + other;
    case ReduceOp::kProduct:
      return one * other;
    case ReduceOp::kMin:
      return at::minimum(one, other);
    case ReduceOp::kMax:
      return at::maximum(one, other);
    case ReduceOp::kBitAnd:
      return one & other;
    case ReduceOp::kBitOr:
      return one | other;
    case ReduceOp::kBitXor:
      return one ^ other;
    case ReduceOp::kAvg:
      break;  // averages are allowed for floating dtypes only, and run() handles these
  }
  TORCH_INTERNAL_ASSERT(false);
}

/// Rounds fp32 results to T and stores them. LibTorch's own conversion is not used: it gives NaNs
/// other bits where it is vectorised, so a NaN's bits would depend on its position.
template <typename T>
void store_rounded(char* target, const at::Tensor& result) {
  store_block(reinterpret_cast<T*>(target), result.const_data_ptr<float>(), result.numel());
}

/// Reduces with LibTorch's operators: products, bitwise operations, and all integer and bool
/// dtypes.
void reduce_plainly(c10::ScalarType dtype, const Job& job) {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  for (int64_t begin = 0; begin < job.numel; begin += kPlainBlockNumel) {
    const int64_t count = std::min(kPlainBlockNumel, job.numel - begin);
    at::Tensor result = operand(job.sources[0] + begin * element, count, dtype);
    for (int rank = 1; rank < job.ranks; ++rank) {
      result = combined(job.op, result, operand(job.sources[rank] + begin * element, count, dtype));
    }
    for (int target = 0; target < job.target_count; ++target) {
      char* const to = job.targets[target] + begin * element;
      if (dtype == c10::ScalarType::BFloat16) {
        store_rounded<c10::BFloat16>(to, result);
      } else if (dtype == c10::ScalarType::Half) {
        store_rounded<c10::Half>(to, result);
      } else {
        std::memcpy(to, result.const_data_ptr(), static_cast<size_t>(count * element));
      }
    }
  }
}

}  // namespace

void reduce(c10::ScalarType dtype, ReduceOp op, const char* const* sources, int ranks,
            char* const* targets, int target_count, int64_t numel, Stores stores, double divisor,
            SumOrder order) {
  const Job job{.op = op,
                .divisor = divisor == 0.0 ? ranks : divisor,
                .sources = sources,
                .ranks = ranks,
                .targets = targets,
                .target_count = target_count,
                .numel = numel,
                .stores = stores,
                .order = order};
  // reduce_plainly() is slower, but these cases are not on training's path.
  if (op >= ReduceOp::kProduct || !c10::isFloatingType(dtype)) return reduce_plainly(dtype, job);
  switch (dtype) {
    case c10::ScalarType::Float:
      return run_float(job);
    case c10::ScalarType::Double:
      return run_double(job);
    case c10::ScalarType::BFloat16:
      return run_bfloat16(job);
    case c10::ScalarType::Half:
      return run_half(job);
    default:
      TORCH_CHECK(false, "[comm] reduce: got ", c10::toString(dtype),
                  ", expected a dtype that collectives support; convert it first");
  }
}

}  // namespace tessera::internal::kernels
