#include "tessera/optim/own/optimizer_update.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/all.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linspace.h>
#include <c10/util/Exception.h>

#include "tessera/optim/own/optimizer_step.h"

namespace tessera::internal {

namespace {

// Elements of a piece; a multiple of the alignment of segments.
constexpr int64_t kPieceNumel = 1 << 15;

at::Tensor piece_of(void* memory, int64_t begin, int64_t numel, at::ScalarType dtype) {
  const auto offset = begin * static_cast<int64_t>(c10::elementSize(dtype));
  return at::from_blob(static_cast<char*>(memory) + offset, {numel}, dtype);
}

}  // namespace

double initial_state(const ErasedForm& form, const torch::optim::OptimizerOptions& options,
                     size_t state) {
  const at::NoGradGuard no_grad;
  // The values differ, so that a state that is computed from them does not look constant.
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
    return 0.0;  // the first update will throw this error
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
    // The optimizer may write to its gradient, so it gets a copy.
    piece.mutable_grad() =
        piece_of(const_cast<T*>(gradient), begin, size, dtype).mul(next.gradient_scale);
    run_optimizer_step(*form_, *next.options, next.step, piece, kept);
  }
}

}  // namespace tessera::internal
