#include "tessera/core/comm/nccl/call.h"

#include <absl/strings/str_cat.h>

namespace tessera::nccl {
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
    absl::StrAppend(&text, is_scaled ? " scaled " : " ", std::string(to_string(reduce_op)));
  }
  if (numel >= 0) absl::StrAppend(&text, " ", dtype_name(dtype), "[", numel, "]");
  if (root >= 0) absl::StrAppend(&text, " from rank ", root);
  return absl::StrCat(text, " '", tag, "'", place);
}

}  // namespace tessera::nccl
