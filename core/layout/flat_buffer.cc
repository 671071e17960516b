#include "tessera/core/layout/flat_buffer.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/strides.h>

namespace tessera {

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

void move_into(const at::Tensor& flat, Range range, const at::Tensor& parameter) {
  TORCH_CHECK(flat.scalar_type() == parameter.scalar_type(), "[layout] parameter dtype: got ",
              parameter.scalar_type(), ", expected ", flat.scalar_type());
  const c10::NoGradGuard no_grad;
  at::Tensor view = view_like(flat, range, parameter);
  view.copy_(parameter);
  parameter.set_data(view);
}

bool lives_in(const at::Tensor& flat, Range range, const at::Tensor& parameter) {
  return parameter.layout() == c10::kStrided && parameter.has_storage() &&
         parameter.storage().unsafeGetStorageImpl() == flat.storage().unsafeGetStorageImpl() &&
         parameter.scalar_type() == flat.scalar_type() && parameter.numel() == range.numel &&
         parameter.storage_offset() == flat.storage_offset() + range.begin &&
         is_non_overlapping_dense(parameter);
}

void move_out(const at::Tensor& parameter) {
  const c10::NoGradGuard no_grad;
  at::Tensor own =
      at::empty_strided(parameter.sizes(), flat_strides(parameter), parameter.options());
  own.copy_(parameter);
  parameter.set_data(own);
}

}  // namespace tessera
