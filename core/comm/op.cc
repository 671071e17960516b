#include "tessera/core/comm/op.h"

namespace tessera {

const char* to_string(Op op) {
  switch (op) {
    case Op::kAllReduce:
      return "all_reduce";
    case Op::kReduceScatter:
      return "reduce_scatter";
    case Op::kAllGather:
      return "all_gather";
    case Op::kBroadcast:
      return "broadcast";
    case Op::kBarrier:
      return "barrier";
    case Op::kSubgroup:
      return "subgroup";
    case Op::kMakeWindow:
      return "make_window";
    case Op::kSharedBuffer:
      return "make_shared_buffer";
    case Op::kInit:
      return "init_process_group";
    case Op::kAllocate:
      return "allocate";
  }
  return "unknown";
}

const char* dtype_name(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return "float32";
    case c10::ScalarType::Double:
      return "float64";
    case c10::ScalarType::BFloat16:
      return "bfloat16";
    case c10::ScalarType::Half:
      return "float16";
    case c10::ScalarType::Long:
      return "int64";
    case c10::ScalarType::Int:
      return "int32";
    case c10::ScalarType::Byte:
      return "uint8";
    default:
      return "unknown";
  }
}

}  // namespace tessera
