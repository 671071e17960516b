#include "tessera/core/layout/flat_buffer.h"

#include <utility>

#include <ATen/ops/as_strided.h>
#include <c10/core/GradMode.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/strides.h>

namespace tessera::internal {

namespace {

void check_flat(const at::Tensor& flat, Range range) {
  TORCH_CHECK(flat.dim() == 1 && flat.is_contiguous(), "[layout] flat buffer: got ", flat.dim(),
              " dimensions, expected a contiguous 1-d tensor");
  TORCH_CHECK(range.begin >= 0 && range.numel >= 0 && range.end() <= flat.numel(),
              "[layout] range: got ", range.begin, " to ", range.end(),
              ", expected a part of 0 to ", flat.numel());
}

}  // namespace

bool is_non_overlapping_dense(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense();
}

std::vector<int64_t> flat_strides(const at::Tensor& tensor) {
  if (is_non_overlapping_dense(tensor)) return tensor.strides().vec();
  const auto strides = c10::contiguous_strides(tensor.sizes());
  return {strides.begin(), strides.end()};
}

at::Tensor view_like(const at::Tensor& flat, Range range, const at::Tensor& like) {
  check_flat(flat, range);
  TORCH_CHECK(range.numel == like.numel(), "[layout] range: got ", range.numel,
              " elements, expected ", like.numel());
  const c10::NoGradGuard no_grad;
  return at::as_strided(flat, like.sizes(), flat_strides(like),
                        flat.storage_offset() + range.begin);
}

int64_t extent_numel(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return last + 1;
}

bool fills_storage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && is_non_overlapping_dense(tensor) &&
         tensor.storage().nbytes() == tensor.nbytes();
}

at::Tensor without_memory(const at::Tensor& like, at::ScalarType dtype) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), like.numel() * c10::elementSize(dtype),
                       c10::DataPtr(nullptr, like.device()), /*allocator=*/nullptr,
                       /*resizable=*/false);
  // Constructs the tensor directly, because factories and set_() would access the data, which does
  // not exist.
  const auto key = like.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), flat_strides(like));
  return tensor;
}

}  // namespace tessera::internal
