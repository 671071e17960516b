#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace tessera::internal {

/// Updates whole parameters on the host, under an algorithm that is not elementwise.
///
/// Note [Whole tensors]
/// An update has two elementwise passes. The first, ElementUpdate's apply(), updates the states and
/// writes a direction to a given place instead of updating the values. The second, apply() here,
/// updates the values. What happens between them depends on needs():
///   kTransform  transform() turns the whole direction of a parameter into a result. The
///               direction travels to one rank and the result back
///               (zero/step/whole_tensor_exchange.h).
///   kNorms      Norms of the whole parameter are taken. Only exact sums travel between ranks.
///   kValues     There are no states per element, so the direction is the gradient. It travels to
///               the parameter's owner, together with the values. update() computes new values
///               from them and from states that the owner keeps whole.
/// Under kTransform and kNorms, values and states stay cut into slices. Nothing travels if a rank
/// has all slices. The bits do not depend on the slices: transform() gets the same elements in
/// memory of its own, with the same strides and alignment, and sums are not rounded. What
/// transform() computes may depend on at::get_num_threads() of its rank, like the result of any
/// matrix product.
class WholeUpdate {
 public:
  using Options = torch::optim::OptimizerOptions;
  /// Data that the second pass needs besides directions.
  enum class Needs : uint8_t {
    kTransform,  ///< results of transform()
    /// 2-norms of values and direction; the place for the direction holds a copy of the values
    /// until the first pass writes the direction there.
    kNorms,
    kValues,  ///< the new values, which update() computes and apply() copies
  };
  /// Numbers of the whole parameter that apply() may use.
  struct Whole {
    at::IntArrayRef sizes;
    double norm_of_values = 0;  ///< set under Needs::kNorms
    double norm_of_direction = 0;
  };

  /// A whole parameter at its owner, in the parameter's own shape. update() may change all tensors.
  struct Owned {
    at::Tensor values;
    at::Tensor gradient;  ///< already multiplied by the gradient scale
    /// Indexed by WholeState::number; undefined if the parameter lacks the state.
    std::span<const at::Tensor> states;
    int64_t step;  ///< the parameter's update count, including this update
  };

  WholeUpdate() = default;
  virtual ~WholeUpdate() = default;
  WholeUpdate(const WholeUpdate&) = delete;
  WholeUpdate& operator=(const WholeUpdate&) = delete;

  virtual Needs needs() const = 0;
  /// Returns the time that transform() takes for a parameter of `sizes`, in a unit that is the same
  /// for all parameters.
  virtual int64_t cost(at::IntArrayRef /*sizes*/) const { return 0; }
  /// Returns how many elements of scratch memory transform() needs, whatever the options are.
  virtual int64_t scratch_numel(at::IntArrayRef /*sizes*/) const { return 0; }
  /// Replaces `direction`, which has the parameter's sizes and the values' dtype, by the result.
  /// `scratch`: at least scratch_numel() elements of the same dtype, one-dimensional, aligned to 64
  /// bytes.
  virtual void transform(const Options& /*options*/, const at::Tensor& /*direction*/,
                         const at::Tensor& /*scratch*/) const {}
  /// Writes new values to `owned.values` (Needs::kValues).
  virtual void update(const Options& /*options*/, const Owned& /*owned*/) const {}
  /// Updates `numel` values of a parameter with the same elements of `result`. `result` is the
  /// direction under Needs::kNorms, transform()'s result under kTransform, and the new values under
  /// kValues.
  virtual void apply(const Options& options, const Whole& whole, float* values, const float* result,
                     int64_t numel) const = 0;
  virtual void apply(const Options& options, const Whole& whole, double* values,
                     const double* result, int64_t numel) const = 0;
};

}  // namespace tessera::internal
