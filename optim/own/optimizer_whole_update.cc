#include "tessera/optim/own/optimizer_whole_update.h"

#include <algorithm>
#include <array>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include "tessera/optim/own/optimizer_step.h"

namespace tessera::internal {

namespace {

struct GradientCopy {
  using Options = torch::optim::OptimizerOptions;
  struct Coefficients {
    double gradient_scale = 1.0;
  };
  static constexpr size_t kStates = 0;

  static Coefficients coefficients(const Options&, int64_t /*step*/, double gradient_scale) {
    return {.gradient_scale = gradient_scale};
  }
  template <typename T>
  static void apply(T* direction, const T* gradient, const std::array<T*, kStates>& /*states*/,
                    int64_t numel, const Coefficients& coefficients) {
    const auto scale = static_cast<T>(coefficients.gradient_scale);
    std::transform(gradient, gradient + numel, direction,
                   [scale](T element) { return element * scale; });
  }
};

/// Returns a new tensor over the memory of `tensor`, so that the user's code cannot reach the
/// engine's tensor.
at::Tensor over_memory_of(const at::Tensor& tensor) {
  return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(),
                       tensor.scalar_type());
}

}  // namespace

void OptimizerWholeUpdate::update(const Options& options, const Owned& owned) const {
  const at::NoGradGuard no_grad;
  at::Tensor values = over_memory_of(owned.values);
  values.requires_grad_();  // as a parameter does
  values.mutable_grad() = over_memory_of(owned.gradient);
  std::vector<at::Tensor> kept(form_->states.size());
  for (size_t i = 0; i < owned.states.size(); ++i) {
    if (owned.states[i].defined()) kept[i] = over_memory_of(owned.states[i]);
  }
  run_optimizer_step(*form_, options, owned.step, values, kept);
}

void OptimizerWholeUpdate::apply(const Options& /*options*/, const Whole& /*whole*/, float* values,
                                 const float* result, int64_t numel) const {
  std::copy_n(result, numel, values);
}

void OptimizerWholeUpdate::apply(const Options& /*options*/, const Whole& /*whole*/, double* values,
                                 const double* result, int64_t numel) const {
  std::copy_n(result, numel, values);
}

std::unique_ptr<ElementUpdate> make_gradient_copy(size_t parameters) {
  return make_element_update<GradientCopy>(parameters);
}

}  // namespace tessera::internal
