#include "tessera/optim/cuda/dtype.h"

#include <c10/util/Exception.h>

namespace tessera::internal::cuda {

bool has_kernels(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

Dtype dtype_of(at::ScalarType dtype) {
  TORCH_CHECK(has_kernels(dtype), "[cuda] dtype: got ", dtype,
              ", expected Float, BFloat16 or Half; train other dtypes on the CPU");
  if (dtype == at::kFloat) return Dtype::kFloat;
  return dtype == at::kBFloat16 ? Dtype::kBFloat16 : Dtype::kHalf;
}

void require_elements(const char* what, const at::Tensor& tensor, int64_t numel,
                      at::Device device) {
  TORCH_CHECK(tensor.defined(), "[cuda] ", what, ": got no tensor, expected ", numel,
              " elements on ", device);
  TORCH_CHECK(tensor.dim() == 1 && tensor.is_contiguous() && tensor.numel() == numel &&
                  tensor.device() == device && has_kernels(tensor.scalar_type()),
              "[cuda] ", what, ": got ", tensor.is_contiguous() ? "" : "non-contiguous ",
              tensor.scalar_type(), " ", tensor.sizes(), " on ", tensor.device(),
              ", expected a contiguous [", numel, "] of Float, BFloat16 or Half on ", device);
}

}  // namespace tessera::internal::cuda
