#include "tessera/zero/engine/dot_grad_views.h"

#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include "tessera/core/layout/flat_buffer.h"

namespace tessera::internal {
namespace {

/// Returns a tensor that is like `parameter` but has no memory: any read of its data throws `text`.
at::Tensor stand_in(const at::Tensor& parameter, const std::string& text) {
  at::Tensor tensor = without_memory(parameter, parameter.scalar_type());
  tensor.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      text);
  return tensor;
}

/// Returns the elements of `view` as a tensor that is no view to autograd, because torch
/// optimizers' zero_grad() detaches gradients in place, which autograd refuses for views.
at::Tensor without_base(const at::Tensor& view) {
  if (!view.defined()) return view;
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(view.storage()), c10::DispatchKeySet(view.options().computeDispatchKey()),
      view.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(view.sizes(), view.strides(),
                                                      view.storage_offset());
  return tensor;
}

/// Returns true if `grad` is `shown`, or the alias of `shown` that Module::zero_grad(false) leaves.
bool is_shown(const at::Tensor& grad, const at::Tensor& shown) {
  if (grad.is_same(shown)) return true;
  return grad.defined() && shown.defined() && grad.has_storage() &&
         grad.storage().unsafeGetStorageImpl() == shown.storage().unsafeGetStorageImpl() &&
         grad.storage_offset() == shown.storage_offset() && grad.sizes() == shown.sizes();
}

}  // namespace

DotGradViews::DotGradViews(const ParameterTable& table, std::vector<GradientView> views)
    : table_(table),
      views_(std::move(views)),
      sharded_(table.size()),
      local_(table.size()),
      shown_(table.size()),
      versions_(table.size()) {
  TORCH_INTERNAL_ASSERT(views_.size() == table.size());
  for (GradientView& view : views_) view.whole = without_base(view.whole);
}

void DotGradViews::hide(size_t index) {
  at::Tensor& grad = table_[index].tensor.mutable_grad();
  if (!grad.defined()) return;
  TORCH_CHECK(
      is_shown(grad, shown_[index]), "[grad] '", table_[index].name,
      "': .grad was assigned outside the engine, so the gradient that backward has now would "
      "be added to it, and this run cannot go on; in the next one leave .grad alone, or "
      "clear it (engine->zero_grad()) before backward");
  grad.reset();
  shown_[index].reset();
}

void DotGradViews::hide_all() {
  edits_ = 0;
  for (size_t i = 0; i < shown_.size(); ++i) {
    if (!shown_[i].defined()) continue;
    at::Tensor& grad = table_[i].tensor.mutable_grad();
    if (is_shown(grad, shown_[i])) grad.reset();
    shown_[i].reset();
  }
}

void DotGradViews::drop_all() {
  hide_all();
  for (size_t i = 0; i < table_.size(); ++i) {
    if (table_[i].is_trainable) table_[i].tensor.mutable_grad().reset();
  }
}

const at::Tensor& DotGradViews::stand_in_of(size_t index, Content content) {
  const bool is_local = content == Content::kLocal;
  at::Tensor& tensor = is_local ? local_[index] : sharded_[index];
  if (!tensor.defined()) {
    const Parameter& parameter = table_[index];
    tensor = stand_in(
        parameter.tensor,
        absl::StrCat("[grad] the gradient of '", parameter.name, "' ",
                     is_local ? "is sharded or not reduced yet" : views_[index].obstacle,
                     ", so .grad can be neither read nor written; engine->zero_grad() drops it, "
                     "StepResult::grad_norm has the norm, Options::max_grad_norm clips"));
  }
  return tensor;
}

void DotGradViews::show(size_t index, Content content) {
  const at::Tensor& whole = views_[index].whole;
  if (content == Content::kReduced && whole.defined()) {
    shown_[index] = whole;
    versions_[index] = whole._version();
  } else {
    shown_[index] = stand_in_of(index, content);
  }
  table_[index].tensor.mutable_grad() = shown_[index];
}

DotGradViews::Cleared DotGradViews::cleared() const {
  Cleared cleared;
  size_t left = 0;
  for (size_t i = 0; i < shown_.size(); ++i) {
    if (!shown_[i].defined()) continue;
    if (table_[i].tensor.grad().defined()) {
      ++left;
    } else {
      cleared.parameters.push_back(i);
    }
  }
  cleared.all = left == 0 && !cleared.parameters.empty();
  return cleared;
}

std::optional<size_t> DotGradViews::replaced() const {
  for (size_t i = 0; i < shown_.size(); ++i) {
    if (!table_[i].is_trainable) continue;
    const at::Tensor& grad = table_[i].tensor.grad();
    if (grad.defined() && !is_shown(grad, shown_[i])) return i;
  }
  return std::nullopt;
}

int64_t DotGradViews::count_edits() {
  for (size_t i = 0; i < shown_.size(); ++i) {
    if (!shown_[i].defined() || !shown_[i].is_same(views_[i].whole)) continue;
    const int64_t version = shown_[i]._version();
    edits_ += version - std::exchange(versions_[i], version);
  }
  return edits_;
}

}  // namespace tessera::internal
