#include "tessera/checkpoint/engine/tensor_problem.h"

#include <absl/strings/str_cat.h>

#include "tessera/checkpoint/format/dtype_names.h"

namespace tessera::internal {

std::string tensor_problem(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_meta() ||
      tensor.is_nested()) {
    return "got a tensor that is undefined or not dense, expected a dense one";
  }
  if (!dtype_name(tensor.scalar_type()).empty()) return "";
  return absl::StrCat("got a tensor of ", c10::toString(tensor.scalar_type()),
                      ", expected a dtype that safetensors has; convert it first");
}

}  // namespace tessera::internal
