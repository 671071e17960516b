#include "tessera/optim/optimizer_update.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/all.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linspace.h>
#include <c10/util/Exception.h>

namespace tessera::internal {

namespace {

constexpr int64_t kPieceNumel = 1 << 15;  // a multiple of the alignment of segments

at::Tensor piece_of(void* memory, int64_t begin, int64_t numel, at::ScalarType dtype) {
  const auto offset = begin * static_cast<int64_t>(c10::elementSize(dtype));
  return at::from_blob(static_cast<char*>(memory) + offset, {numel}, dtype);
}

void require_fit(const ErasedForm& form, size_t state, int64_t step, const at::Tensor& made,
                 const at::Tensor& kept) {
  const std::string& name = form.states[state].name;
  TORCH_CHECK(kept.defined(), "[optim] ", form.name, ": got the state '", name, "' in update ",
              step, " of a parameter, expected none with these options, as in the first ones; ",
              "make states in the first step");
  TORCH_CHECK(made.sizes() == kept.sizes() && made.scalar_type() == kept.scalar_type(), "[optim] ",
              form.name, ": got the state '", name, "' with sizes ", made.sizes(), " of ",
              made.scalar_type(), ", expected ", kept.sizes(), " of ", kept.scalar_type(),
              ", as in the first updates; keep them");
}

/// Of states that were handed to step number `step`. One that is dropped, to begin anew, is kept
/// nowhere.
void require_kept(const ErasedForm& form, size_t state, int64_t step, const at::Tensor& kept) {
  TORCH_CHECK(step == 1 || !kept.defined(), "[optim] ", form.name, ": got no state '",
              form.states[state].name, "' after update ", step,
              " of a parameter, expected the one that it had before; fill it instead of dropping ",
              "it");
}

}  // namespace

double initial_state(const ErasedForm& form, const torch::optim::OptimizerOptions& options,
                     size_t state) {
  const at::NoGradGuard no_grad;
  // Unequal values, which a state may be made of.
  const at::Tensor values = at::linspace(0.25, 1.0, 2).requires_grad_();
  try {
    const auto optimizer = form.make({values}, options);
    const auto found = optimizer->state().find(values.unsafeGetTensorImpl());
    if (found == optimizer->state().end() || !form.is_state(*found->second)) return 0.0;
    const at::Tensor& made = form.states[state].of(*found->second);
    if (!made.defined() || made.numel() == 0) return 0.0;
    const auto first = made.flatten()[0].item<double>();
    return at::all(made == first).item<bool>() ? first : 0.0;
  } catch (...) {
    return 0.0;  // the first update will throw it
  }
}

void OptimizerUpdate::apply(size_t parameter, float* values, const float* gradient,
                            std::span<void* const> states, int64_t numel) const {
  apply_in_pieces(next_[parameter], values, gradient, states, numel);
}

void OptimizerUpdate::apply(size_t parameter, double* values, const double* gradient,
                            std::span<void* const> states, int64_t numel) const {
  apply_in_pieces(next_[parameter], values, gradient, states, numel);
}

template <typename T>
void OptimizerUpdate::apply_in_pieces(const Next& next, T* values, const T* gradient,
                                      std::span<void* const> states, int64_t numel) const {
  TORCH_INTERNAL_ASSERT(next.options != nullptr && states.size() == form_->states.size());
  const at::NoGradGuard no_grad;
  const at::ScalarType dtype = c10::CppTypeToScalarType<T>::value;
  std::vector<at::Tensor> kept(states.size());
  for (int64_t begin = 0; begin < numel; begin += kPieceNumel) {
    const int64_t size = std::min(kPieceNumel, numel - begin);
    for (size_t i = 0; i < states.size(); ++i) {
      if (states[i] == nullptr) continue;
      kept[i] = piece_of(states[i], begin, size, dtypes_[i].value_or(dtype));
    }
    at::Tensor piece = piece_of(values, begin, size, dtype);
    piece.requires_grad_();  // as a parameter does
    // The optimizer may write to its gradient, which is not ours to change.
    piece.mutable_grad() =
        piece_of(const_cast<T*>(gradient), begin, size, dtype).mul(next.gradient_scale);
    step(next, piece, kept);
  }
}

void OptimizerUpdate::step(const Next& next, const at::Tensor& values,
                           const std::vector<at::Tensor>& kept_states) const {
  const at::Tensor memory = values.detach();
  const std::unique_ptr<torch::optim::Optimizer> optimizer = form_->make({values}, *next.options);
  auto& of_parameters = optimizer->state();
  void* const key = values.unsafeGetTensorImpl();
  if (next.step > 1 && (form_->write_step || !form_->states.empty())) {
    std::unique_ptr<ErasedForm::State> state = form_->make_state();
    bool has_any = false;
    for (size_t i = 0; i < kept_states.size(); ++i) {
      if (!kept_states[i].defined()) continue;
      form_->states[i].of(*state) = kept_states[i];
      has_any = true;
    }
    if (form_->write_step) form_->write_step(*state, next.step - 1);
    if (has_any || form_->write_step) of_parameters[key] = std::move(state);
  }
  optimizer->step();
  if (values.data_ptr() != memory.data_ptr()) memory.copy_(values);  // set_data()

  const auto found = of_parameters.find(key);
  if (found == of_parameters.end()) {
    for (size_t i = 0; i < kept_states.size(); ++i) {
      require_kept(*form_, i, next.step, kept_states[i]);
    }
    return;
  }
  TORCH_CHECK(form_->is_state(*found->second), "[optim] ", form_->name,
              ": got a state of another type than its ElementwiseTraits say, expected that one");
  std::vector<std::pair<at::Tensor, at::Tensor>> replaced;  // from, to
  for (size_t i = 0; i < kept_states.size(); ++i) {
    const at::Tensor& made = form_->states[i].of(*found->second);
    const at::Tensor& kept = kept_states[i];
    if (!made.defined()) require_kept(*form_, i, next.step, kept);
    if (!made.defined()) continue;
    require_fit(*form_, i, next.step, made, kept);
    if (made.data_ptr() == kept.data_ptr() && made.is_contiguous()) continue;
    // Also another state's memory, as where two change places.
    const bool is_kept = std::any_of(
        kept_states.begin(), kept_states.end(),
        [&made](const at::Tensor& other) { return other.defined() && made.is_alias_of(other); });
    replaced.emplace_back(is_kept ? made.clone() : made, kept);
  }
  for (const auto& [from, to] : replaced) to.copy_(from);
}

}  // namespace tessera::internal
