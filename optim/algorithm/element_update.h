#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

namespace tessera::internal {

/// Updates elements of parameters on the host, under one algorithm. Used by one thread.
class ElementUpdate {
 public:
  using Options = torch::optim::OptimizerOptions;
  /// The largest number of states that an algorithm may have.
  static constexpr size_t kMaxStates = 8;

  ElementUpdate() = default;
  virtual ~ElementUpdate() = default;
  ElementUpdate(const ElementUpdate&) = delete;
  ElementUpdate& operator=(const ElementUpdate&) = delete;

  /// Returns true if an update with these options raises the parameter's step count.
  virtual bool is_counted(const Options& /*options*/) const { return true; }
  /// Prepares the following calls of apply() for parameter number `parameter` of the
  /// ParameterTable. `step` is the parameter's update count, including this update. `options` must
  /// not change before the last of these apply() calls. The library's own algorithms allocate
  /// nothing, here and in apply().
  virtual void prepare(size_t parameter, const Options& options, int64_t step,
                       double gradient_scale) = 0;
  /// Updates `numel` elements of `parameter`. `states` has one array for each of Algorithm::states,
  /// in the state's own dtype, or null if the state is not kept. Arrays do not overlap.
  virtual void apply(size_t parameter, float* values, const float* gradient,
                     std::span<void* const> states, int64_t numel) const = 0;
  virtual void apply(size_t parameter, double* values, const double* gradient,
                     std::span<void* const> states, int64_t numel) const = 0;
};

/// The ElementUpdate of one algorithm. `Update` has these static members:
///   Options       the type of the algorithm's options
///   Coefficients  the numbers that an element's update needs, per parameter and step
///   kStates       how many states the algorithm has
///   is_counted(options)      like ElementUpdate's; may be missing if every update is counted
///   coefficients(options, step, gradient_scale)  returns the Coefficients
///   apply(values, gradient, states, numel, coefficients)
///                 updates the elements, with T* values and const T* gradient for T = float and
///                 double. `states` is a const std::array<T*, kStates>& if every state has the
///                 values' dtype and one value per element, else a std::span<void* const>.
template <typename Update>
class ElementUpdateBy final : public ElementUpdate {
 public:
  /// `parameters`: the number of parameters in the ParameterTable.
  explicit ElementUpdateBy(size_t parameters) : coefficients_(parameters) {
    static_assert(Update::kStates <= kMaxStates);
  }

  bool is_counted(const Options& options) const override {
    if constexpr (requires { Update::is_counted(own(options)); }) {
      return Update::is_counted(own(options));
    }
    return ElementUpdate::is_counted(options);
  }
  void prepare(size_t parameter, const Options& options, int64_t step,
               double gradient_scale) override {
    coefficients_[parameter] = Update::coefficients(own(options), step, gradient_scale);
  }
  void apply(size_t parameter, float* values, const float* gradient, std::span<void* const> states,
             int64_t numel) const override {
    apply_to(parameter, values, gradient, states, numel);
  }
  void apply(size_t parameter, double* values, const double* gradient,
             std::span<void* const> states, int64_t numel) const override {
    apply_to(parameter, values, gradient, states, numel);
  }

 private:
  static const typename Update::Options& own(const Options& options) {
    return static_cast<const typename Update::Options&>(options);
  }

  template <typename T>
  void apply_to(size_t parameter, T* values, const T* gradient, std::span<void* const> states,
                int64_t numel) const {
    TORCH_INTERNAL_ASSERT(states.size() == Update::kStates);
    const typename Update::Coefficients& by = coefficients_[parameter];
    if constexpr (requires { Update::apply(values, gradient, states, numel, by); }) {
      Update::apply(values, gradient, states, numel, by);
    } else {
      std::array<T*, Update::kStates> own_states;
      std::transform(states.begin(), states.end(), own_states.begin(),
                     [](void* state) { return static_cast<T*>(state); });
      Update::apply(values, gradient, own_states, numel, by);
    }
  }

  std::vector<typename Update::Coefficients> coefficients_;  // per entry of the table
};

/// Makes an ElementUpdateBy<Update>. For Algorithm::make_update.
template <typename Update>
std::unique_ptr<ElementUpdate> make_element_update(size_t parameters) {
  return std::make_unique<ElementUpdateBy<Update>>(parameters);
}

}  // namespace tessera::internal
