#include "tessera/core/comm/nccl/launch.h"

#include <c10/util/Exception.h>

namespace tessera::internal::nccl {
namespace {

RedOp red_op_of(const Collective& collective) {
  TORCH_CHECK(collective.divisor == 0.0, "[comm] ", to_string(collective.op), " '",
              std::string(collective.tag), "': got divisor ", collective.divisor,
              ", expected 0: NCCL divides by the number of ranks; reduce with SUM and divide "
              "yourself");
  // NCCL knows no bool; of zeros and ones, bytes give the same: see ReduceOp.
  const bool is_bool = collective.input.scalar_type() == at::kBool;
  switch (collective.reduce) {
    case ReduceOp::kSum:
      return is_bool ? RedOp::kMax : RedOp::kSum;
    case ReduceOp::kProduct:
      return is_bool ? RedOp::kMin : RedOp::kProd;
    case ReduceOp::kAvg:
      return RedOp::kAvg;
    case ReduceOp::kMin:
      return RedOp::kMin;
    case ReduceOp::kMax:
      return RedOp::kMax;
    default:
      break;  // refused by find_lacking()
  }
  TORCH_INTERNAL_ASSERT(false, to_string(collective.reduce));
}

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

}  // namespace

Result launch(const Api& api, const Collective& collective, OpaqueComm* comm, void* stream) {
  const void* const from = collective.input.const_data_ptr();
  void* const to = collective.output.data_ptr();
  const auto numel = static_cast<size_t>(collective.input.numel());
  const DataType dtype = dtype_of(collective.input.scalar_type());
  switch (collective.op) {
    case Op::kAllReduce:
      return api.all_reduce(from, to, numel, dtype, red_op_of(collective), comm, stream);
    case Op::kReduceScatter:
      return api.reduce_scatter(from, to, static_cast<size_t>(collective.output.numel()), dtype,
                                red_op_of(collective), comm, stream);
    case Op::kAllGather:
      return api.all_gather(from, to, numel, dtype, comm, stream);
    case Op::kBroadcast:
      return api.broadcast(from, to, numel, dtype, collective.peer, comm, stream);
    default:
      TORCH_INTERNAL_ASSERT(false, to_string(collective.op));
  }
}

}  // namespace tessera::internal::nccl
