#include "tessera/core/layout/readable.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "tessera/core/layout/flat_buffer.h"
#include "tessera/core/process/error_text.h"

namespace tessera::internal {

std::string reading_problem(const at::Tensor& tensor) {
  if (tensor.is_nested()) return "it is nested; pad it, or keep its values and offsets instead";
  if (tensor.layout() != at::kStrided || !(tensor.is_cpu() || tensor.is_cuda())) return "";
  if (tensor._is_zerotensor()) return "it is a lazy zero; call clone()";
  if (tensor.is_neg() || tensor.is_conj()) {
    return "its negation or conjugation is lazy; call resolve_neg() or resolve_conj()";
  }
  if (tensor.numel() == 0) return "";
  const auto end = (tensor.storage_offset() + extent_numel(tensor)) *
                   static_cast<int64_t>(tensor.element_size());
  try {
    const bool is_there = tensor.const_data_ptr() != nullptr;
    if (is_there && static_cast<int64_t>(tensor.storage().nbytes()) >= end) return "";
  } catch (const c10::Error& error) {
    return error_text(error);
  }
  return "it has less memory than elements";
}

at::Tensor in_memory(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (tensor.layout() == at::kSparse) {
    const at::Tensor values = tensor._values();
    const at::Tensor resolved = in_memory(values);
    if (resolved.is_same(values)) return tensor;
    return at::_sparse_coo_tensor_unsafe(tensor._indices(), resolved, tensor.sizes(),
                                         values.options().layout(at::kSparse),
                                         tensor.is_coalesced());
  }
  if (tensor.layout() != at::kStrided) return tensor;
  if (tensor._is_zerotensor()) return at::zeros(tensor.sizes(), tensor.options());
  return tensor.resolve_conj().resolve_neg();
}

}  // namespace tessera::internal
