#include "tessera/core/comm/nccl/call.h"

#include <absl/strings/str_cat.h>

namespace tessera::nccl {
namespace {

const char* name_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    case at::kLong:
      return "int64";
    case at::kInt:
      return "int32";
    case at::kByte:
      return "uint8";
    default:
      return c10::toString(dtype);
  }
}

}  // namespace

const char* to_string(Op op) {
  switch (op) {
    case Op::kInit:
      return "init_process_group";
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
    case Op::kSharedBuffer:
      return "make_shared_buffer";
  }
  return "unknown";
}

Call Call::of(Op op, std::string_view tag) {
  Call call;
  call.op = op;
  call.tag = std::string(tag);
  return call;
}

Call Call::of(Op op, std::string_view tag, const at::Tensor& tensor) {
  Call call = of(op, tag);
  call.dtype = tensor.scalar_type();
  call.numel = tensor.numel();
  return call;
}

std::string Call::text() const {
  std::string text = to_string(op);
  if (op == Op::kAllReduce || op == Op::kReduceScatter) {
    absl::StrAppend(&text, is_scaled ? " scaled " : " ",
                    std::string(tessera::to_string(reduce_op)));
  }
  if (numel >= 0) absl::StrAppend(&text, " ", name_of(dtype), "[", numel, "]");
  if (root >= 0) absl::StrAppend(&text, " from rank ", root);
  return absl::StrCat(text, " '", tag, "'");
}

}  // namespace tessera::nccl
