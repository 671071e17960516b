#include "tessera/core/comm/nccl/reduction.h"

#include <cstring>

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

namespace tessera::nccl {
namespace {

RedOp built_in(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return RedOp::kSum;
    case ReduceOp::kAvg:
      return RedOp::kAvg;
    case ReduceOp::kMin:
      return RedOp::kMin;
    case ReduceOp::kMax:
      return RedOp::kMax;
  }
  return RedOp::kSum;
}

/// A factor in the dtype that it multiplies.
struct Scalar {
  alignas(8) char bytes[8] = {};

  template <typename T>
  void set(T value) {
    std::memcpy(bytes, &value, sizeof(value));
  }
};

}  // namespace

DataType dtype_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return DataType::kFloat32;
    case at::kDouble:
      return DataType::kFloat64;
    case at::kBFloat16:
      return DataType::kBfloat16;
    case at::kHalf:
      return DataType::kFloat16;
    case at::kLong:
      return DataType::kInt64;
    case at::kInt:
      return DataType::kInt32;
    default:  // the checks let nothing else pass
      return DataType::kUint8;
  }
}

void check_scaled(const char* op, const at::Tensor& tensor) {
  TORCH_CHECK(at::isFloatingType(tensor.scalar_type()), "[comm] ", op, ": got a tensor of ",
              c10::toString(tensor.scalar_type()),
              ", expected a floating dtype; reduce with SUM and multiply yourself");
}

Reduction::Reduction(const Api& api, OpaqueComm* comm, at::ScalarType dtype, ReduceOp op,
                     std::optional<double> factor)
    : api_(api), comm_(comm), dtype_(dtype_of(dtype)), op_(built_in(op)) {
  if (!factor) return;
  Scalar scalar;
  const auto narrow = static_cast<float>(*factor);
  switch (dtype) {
    case at::kDouble:
      scalar.set(*factor);
      break;
    case at::kBFloat16:
      scalar.set(c10::BFloat16(narrow));
      break;
    case at::kHalf:
      scalar.set(c10::Half(narrow));
      break;
    default:
      scalar.set(narrow);
  }
  result_ = api_.red_op_create_pre_mul_sum(&op_, scalar.bytes, dtype_,
                                           ScalarResidence::kHostImmediate, comm_);
  is_made_ = result_ == Result::kSuccess;
}

Reduction::~Reduction() {
  if (is_made_) api_.red_op_destroy(op_, comm_);
}

}  // namespace tessera::nccl
