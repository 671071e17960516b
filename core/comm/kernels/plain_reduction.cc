#include <algorithm>
#include <cstring>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/kernels/reduce_kernels.h"

namespace tessera::internal::kernels {
namespace {

// Targets may be sources, so a block is finished before it is written. Too small for LibTorch to
// share out among threads.
constexpr int64_t kPlainBlockNumel = 8192;

/// A copy of `numel` elements in the dtype in which they are combined.
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
      break;  // the checks let it pass for floating dtypes only
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace

void reduce_plainly(c10::ScalarType dtype, ReduceOp op, const char* const* sources, int ranks,
                    char* const* targets, int target_count, int64_t numel) {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  for (int64_t begin = 0; begin < numel; begin += kPlainBlockNumel) {
    const int64_t count = std::min(kPlainBlockNumel, numel - begin);
    at::Tensor result = operand(sources[0] + begin * element, count, dtype);
    for (int rank = 1; rank < ranks; ++rank) {
      result = combined(op, result, operand(sources[rank] + begin * element, count, dtype));
    }
    const at::Tensor rounded = result.to(dtype);
    for (int target = 0; target < target_count; ++target) {
      std::memcpy(targets[target] + begin * element, rounded.const_data_ptr(),
                  static_cast<size_t>(count * element));
    }
  }
}

}  // namespace tessera::internal::kernels
