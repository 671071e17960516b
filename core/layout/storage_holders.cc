#include "tessera/core/layout/storage_holders.h"

#include <unordered_set>

#include <absl/strings/str_cat.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/core/layout/flat_buffer.h"

namespace tessera::internal {

namespace {

/// The bytes of a storage from the first element of a tensor to the end of its last element.
struct ByteRange {
  int64_t begin;
  int64_t end;
};

ByteRange byte_range_of(const at::Tensor& tensor) {
  const auto item = static_cast<int64_t>(tensor.element_size());
  const int64_t begin = tensor.storage_offset() * item;
  return {begin, begin + extent_numel(tensor) * item};
}

const c10::StorageImpl* storage_of(const c10::TensorImpl& tensor) {
  return tensor.has_storage() ? tensor.unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

/// If `tensor` is a view, its autograd records refer to its base tensor. Adds the number of these
/// references to references[base tensor].
void count_bases(const at::Tensor& tensor,
                 std::unordered_map<const c10::TensorImpl*, size_t>& references) {
  const auto* view = torch::autograd::impl::get_view_autograd_meta(tensor);
  if (view == nullptr) return;
  if (view->has_bw_view()) ++references[view->get_backward_view().base_.unsafeGetTensorImpl()];
  if (view->has_fw_view() && !view->shared_view_info()) {
    ++references[view->get_forward_view().base_.unsafeGetTensorImpl()];
  }
}

std::vector<at::Tensor> tensors_of(const ParameterTable& table) {
  std::vector<at::Tensor> tensors;
  for (const Parameter& parameter : table) tensors.push_back(parameter.tensor);
  return tensors;
}

}  // namespace

StorageHolders::StorageHolders(const ParameterTable& table) : StorageHolders(tensors_of(table)) {}

StorageHolders::StorageHolders(const std::vector<at::Tensor>& tensors) {
  std::unordered_map<const c10::TensorImpl*, size_t> references;
  std::unordered_set<const c10::TensorImpl*> known;
  for (const at::Tensor& tensor : tensors) {
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (!known.insert(&impl).second) continue;
    ++accounted_[storage_of(impl)];
    count_bases(tensor, references);
  }
  for (const auto& [base, count] : references) {
    if (known.count(base) > 0) continue;
    const bool is_held_elsewhere =
        c10::raw::intrusive_ptr::use_count(const_cast<c10::TensorImpl*>(base)) > count;
    if (!is_held_elsewhere) ++accounted_[storage_of(*base)];
  }
}

int64_t StorageHolders::other_holders(const at::Tensor& tensor) const {
  const c10::Storage& storage = tensor.storage();
  return static_cast<int64_t>(storage.use_count()) - accounted_.at(storage.unsafeGetStorageImpl());
}

std::vector<std::string> alias_problems(const ParameterTable& table, const UnitPlan& plan,
                                        const Precision& precision) {
  const StorageHolders holders(table);
  std::vector<std::string> problems;
  for (size_t i = 0; i < table.size(); ++i) {
    const at::Tensor& tensor = table[i].tensor;
    const at::ScalarType dtype = resolve(table[i].precision(precision), table[i].dtype).parameters;
    const bool is_converted = dtype != tensor.scalar_type();
    const bool is_replaced = is_converted || (plan.has_place(i) && !fills_storage(tensor));
    const int64_t other_holders = is_replaced ? holders.other_holders(tensor) : 0;
    if (other_holders == 0) continue;
    problems.push_back(absl::StrCat(
        "[layout] parameter '", table[i].name, "': got ", other_holders,
        " more holder(s) of its memory (a view, an alias, a buffer, a graph), expected none, "
        "because ",
        is_converted ? absl::StrCat("it is converted from ", c10::toString(tensor.scalar_type()),
                                    " to ", c10::toString(dtype))
                     : std::string("it is a part of a larger or overlapping memory"),
        " and they would keep the old values for good; make them after parallelize, drop them "
        "before "
        "it, or clone() them",
        is_converted ? "; a model that is converted before the views are made keeps them" : ""));
  }
  return problems;
}

bool is_alias(const ParameterTable& table, const at::Tensor& tensor) {
  if (tensor.layout() != c10::kStrided || !tensor.has_storage()) return false;
  const ByteRange inner = byte_range_of(tensor);
  for (const Parameter& parameter : table) {
    if (storage_of(*parameter.tensor.unsafeGetTensorImpl()) !=
        storage_of(*tensor.unsafeGetTensorImpl())) {
      continue;
    }
    const ByteRange outer = byte_range_of(parameter.tensor);
    if (outer.begin <= inner.begin && inner.end <= outer.end) return true;
  }
  return false;
}

}  // namespace tessera::internal
