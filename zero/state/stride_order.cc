#include "tessera/zero/state/stride_order.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

namespace tessera::internal {

namespace {

/// Returns the integer dtype of the same width; `dtype` itself if there is none. Elements are moved
/// as integers, so that no conversion changes bits.
at::ScalarType integer_as_wide_as(at::ScalarType dtype) {
  switch (c10::elementSize(dtype)) {
    case 1:
      return at::kByte;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    case 8:
      return at::kLong;
    default:
      return dtype;
  }
}

/// Returns true if the strides of two entries of one shape mean the same order.
bool has_same_order(const StateEntry& a, const StateEntry& b) {
  if (a.numel() < 2) return true;
  for (size_t i = 0; i < a.sizes.size(); ++i) {
    if (a.sizes[i] > 1 && a.strides[i] != b.strides[i]) return false;
  }
  return true;
}

}  // namespace

at::Tensor copy_in_order(const at::Tensor& tensor, const StateEntry& form) {
  const at::Tensor dense = at::empty_strided(form.sizes, form.strides, tensor.options());
  dense.copy_(tensor);
  return dense.as_strided({dense.numel()}, {1}, dense.storage_offset());
}

at::Tensor reordered(const at::Tensor& values, const StateEntry& form,
                     const std::vector<int64_t>& strides) {
  const at::Tensor from = values.view(integer_as_wide_as(form.dtype));
  const at::Tensor to = at::empty_like(from);
  to.as_strided(form.sizes, form.strides).copy_(from.as_strided(form.sizes, strides));
  return to.view(form.dtype);
}

std::string mismatch(const StateEntry& got, const StateSlot& slot) {
  const StateEntry& expected = slot.form;
  std::vector<std::string> problems;
  if (got.sizes != expected.sizes) {
    problems.push_back(absl::StrCat("got shape ", c10::str(at::IntArrayRef(got.sizes)),
                                    ", expected ", c10::str(at::IntArrayRef(expected.sizes))));
  }
  if (got.dtype != expected.dtype) {
    problems.push_back(absl::StrCat("got dtype ", c10::toString(got.dtype), ", expected ",
                                    c10::toString(expected.dtype),
                                    "; load into the precision that was saved"));
  }
  if (!problems.empty()) return absl::StrJoin(problems, "; ");
  std::string malformed = got.problem();
  if (malformed.empty() && slot.is_order_bound && !has_same_order(got, expected)) {
    return absl::StrCat("got strides ", c10::str(at::IntArrayRef(got.strides)), ", expected ",
                        c10::str(at::IntArrayRef(expected.strides)),
                        ": codes share scales by blocks in memory order; give the parameter the "
                        "memory format that it was saved with before parallelize");
  }
  return malformed;
}

}  // namespace tessera::internal
