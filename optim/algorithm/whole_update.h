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
/// updates the values. Between them one of three things happens. Either transform() turns the whole
/// direction of a parameter into a result: the direction travels to one rank and the result back
/// (zero/step/whole_tensor_exchange.h). Or norms of the whole parameter are taken, for which only
/// exact sums travel. In both cases values and states stay cut into slices. Or there are no states
/// per element. Then the direction is the gradient, which travels with the values, and update()
/// computes new values from them and from states that the parameter's owner keeps whole. Nothing
/// travels if a rank has all slices. The bits do not depend on the slices: transform() gets the
/// same elements in memory of its own, with the same strides and alignment, and sums are not
/// rounded. What transform() computes may depend on at::get_num_threads() of its rank, like the
/// result of any matrix product.
class WholeUpdate {
 public:
  using Options = torch::optim::OptimizerOptions;
  /// Data that the second pass needs besides directions.
  enum class Needs : uint8_t {
    kTransform,  ///< results of transform()
    kNorms,      ///< 2-norms of values and direction; the first pass then finds the values in the
                 ///< place of the direction
    kValues,     ///< new values by update(), which apply() copies
  };
  /// Numbers of the whole parameter that apply() may use.
  struct Whole {
    at::IntArrayRef sizes;
    double norm_of_values = 0;  ///< set under Needs::kNorms
    double norm_of_direction = 0;
  };

  /// A whole parameter at its owner, in its sizes. update() may change all tensors.
  struct Owned {
    at::Tensor values;
    at::Tensor gradient;                 ///< scaled
    std::span<const at::Tensor> states;  ///< by WholeState::number; undefined: none
    int64_t step;                        ///< the parameter's update count, including this update
  };

  WholeUpdate() = default;
  virtual ~WholeUpdate() = default;
  WholeUpdate(const WholeUpdate&) = delete;
  WholeUpdate& operator=(const WholeUpdate&) = delete;

  virtual Needs needs() const = 0;
  /// Returns how long transform() takes for a parameter of `sizes`, compared with other parameters.
  virtual int64_t cost(at::IntArrayRef /*sizes*/) const { return 0; }
  /// Elements of scratch memory that it needs, whatever the options are.
  virtual int64_t scratch_numel(at::IntArrayRef /*sizes*/) const { return 0; }
  /// Replaces `direction`, of the parameter's sizes in the values' dtype, by its result. `scratch`:
  /// at least scratch_numel() elements of the same dtype, one-dimensional, aligned to 64 bytes.
  virtual void transform(const Options& /*options*/, const at::Tensor& /*direction*/,
                         const at::Tensor& /*scratch*/) const {}
  virtual void update(const Options& /*options*/, const Owned& /*owned*/) const {}
  /// Updates `numel` values of a parameter with `result`: as many elements of the direction or of
  /// transform()'s result.
  virtual void apply(const Options& options, const Whole& whole, float* values, const float* result,
                     int64_t numel) const = 0;
  virtual void apply(const Options& options, const Whole& whole, double* values,
                     const double* result, int64_t numel) const = 0;
};

}  // namespace tessera::internal
