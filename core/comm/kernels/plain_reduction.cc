#include "tessera/core/comm/kernels/plain_reduction.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

namespace tessera::internal::kernels {
namespace {

// Targets may be sources, so a block is finished before it is written.
constexpr int64_t kPlainBlockNumel = 1024;

struct Operands {
  const char* const* sources;
  int ranks;
  char* const* targets;
  int target_count;
  int64_t numel;
};

/// Elements of type T, combined as W.
template <typename T, typename W, typename Combine>
void combine_all(const Operands& operands, Combine combine) {
  W result[kPlainBlockNumel];
  T rounded[kPlainBlockNumel];
  for (int64_t begin = 0; begin < operands.numel; begin += kPlainBlockNumel) {
    const int64_t count = std::min(kPlainBlockNumel, operands.numel - begin);
    for (int rank = 0; rank < operands.ranks; ++rank) {
      const T* source = reinterpret_cast<const T*>(operands.sources[rank]) + begin;
      if (rank == 0) {
        for (int64_t i = 0; i < count; ++i) result[i] = static_cast<W>(source[i]);
      } else {
        for (int64_t i = 0; i < count; ++i) {
          result[i] = static_cast<W>(combine(result[i], static_cast<W>(source[i])));
        }
      }
    }
    for (int64_t i = 0; i < count; ++i) rounded[i] = static_cast<T>(result[i]);
    for (int target = 0; target < operands.target_count; ++target) {
      std::memcpy(reinterpret_cast<T*>(operands.targets[target]) + begin, rounded,
                  static_cast<size_t>(count) * sizeof(T));
    }
  }
}

template <typename T>
void multiply_floats(const Operands& operands) {
  using W = std::conditional_t<std::is_same_v<T, double>, double, float>;
  combine_all<T, W>(operands, [](W a, W b) { return a * b; });
}

/// Signed overflow is undefined in C++; unsigned arithmetic wraps as integer tensors do. Types
/// narrower than int would be promoted to it.
template <typename T>
void combine_integers(ReduceOp op, const Operands& operands) {
  using U = std::make_unsigned_t<T>;
  using Wide = std::conditional_t<sizeof(T) < sizeof(uint32_t), uint32_t, U>;
  const auto wrap = [](Wide value) { return static_cast<T>(static_cast<U>(value)); };
  const auto wide = [](T value) { return static_cast<Wide>(static_cast<U>(value)); };
  switch (op) {
    case ReduceOp::kSum:
      return combine_all<T, T>(operands, [&](T a, T b) { return wrap(wide(a) + wide(b)); });
    case ReduceOp::kProduct:
      return combine_all<T, T>(operands, [&](T a, T b) { return wrap(wide(a) * wide(b)); });
    case ReduceOp::kMin:
      return combine_all<T, T>(operands, [](T a, T b) { return std::min(a, b); });
    case ReduceOp::kMax:
      return combine_all<T, T>(operands, [](T a, T b) { return std::max(a, b); });
    case ReduceOp::kBitAnd:
      return combine_all<T, T>(operands, [](T a, T b) { return static_cast<T>(a & b); });
    case ReduceOp::kBitOr:
      return combine_all<T, T>(operands, [](T a, T b) { return static_cast<T>(a | b); });
    case ReduceOp::kBitXor:
      return combine_all<T, T>(operands, [](T a, T b) { return static_cast<T>(a ^ b); });
    case ReduceOp::kAvg:
      break;  // the checks let it pass for floating dtypes only
  }
}

/// As bytes: memory may hold any bits, and only 0 is false.
void combine_bools(ReduceOp op, const Operands& operands) {
  struct Truth {
    uint8_t byte;
    explicit operator bool() const { return byte != 0; }
    explicit Truth(bool value = false) : byte(value ? 1 : 0) {}
  };
  switch (op) {
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBitAnd:
      return combine_all<Truth, bool>(operands, [](bool a, bool b) { return a && b; });
    case ReduceOp::kBitXor:
      return combine_all<Truth, bool>(operands, [](bool a, bool b) { return a != b; });
    default:
      return combine_all<Truth, bool>(operands, [](bool a, bool b) { return a || b; });
  }
}

}  // namespace

bool is_plain_reduction(c10::ScalarType dtype, ReduceOp op) {
  return op >= ReduceOp::kProduct || dtype == c10::ScalarType::Char ||
         dtype == c10::ScalarType::Short || dtype == c10::ScalarType::Bool;
}

void reduce_plainly(c10::ScalarType dtype, ReduceOp op, const char* const* sources, int ranks,
                    char* const* targets, int target_count, int64_t numel) {
  const Operands operands{sources, ranks, targets, target_count, numel};
  switch (dtype) {
    case c10::ScalarType::Float:
      return multiply_floats<float>(operands);
    case c10::ScalarType::Double:
      return multiply_floats<double>(operands);
    case c10::ScalarType::BFloat16:
      return multiply_floats<c10::BFloat16>(operands);
    case c10::ScalarType::Half:
      return multiply_floats<c10::Half>(operands);
    case c10::ScalarType::Long:
      return combine_integers<int64_t>(op, operands);
    case c10::ScalarType::Int:
      return combine_integers<int32_t>(op, operands);
    case c10::ScalarType::Short:
      return combine_integers<int16_t>(op, operands);
    case c10::ScalarType::Char:
      return combine_integers<int8_t>(op, operands);
    case c10::ScalarType::Byte:
      return combine_integers<uint8_t>(op, operands);
    case c10::ScalarType::Bool:
      return combine_bools(op, operands);
    default:
      TORCH_CHECK(false, "[comm] reduce: got ", c10::toString(dtype),
                  ", expected a dtype that collectives support; convert it first");
  }
}

}  // namespace tessera::internal::kernels
