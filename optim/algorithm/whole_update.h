#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace tessera::internal {

/// What the host does with a parameter as a whole, under an algorithm that is not elementwise.
///
/// Note [Whole tensors]
/// An update has two elementwise passes and something between them. The first, ElementUpdate's
/// apply(), updates the states and writes a direction where it is told to, instead of the values.
/// Then either transform() makes the whole direction of a parameter a result, or norms are taken of
/// the whole parameter; the second pass, apply() here, updates the values by that. So values and
/// states stay cut into slices. A direction that is transformed travels to one rank and its result
/// back (zero/step/direction_exchange.h); of norms only exact sums travel; nothing does where a
/// rank has all slices. Or there are no states by element: the direction is the gradient, it
/// travels with the values, and update() makes new values of them and of states that the
/// parameter's owner keeps whole. The bits do not depend on the slices: transform() gets the same
/// elements in memory of its own, with the same strides and alignment, and sums are not rounded.
/// What transform() computes may depend on at::get_num_threads() of its rank, as any matrix
/// product.
class WholeUpdate {
 public:
  using Options = torch::optim::OptimizerOptions;
  /// What the second pass needs besides directions.
  enum class Needs : uint8_t {
    kTransform,  ///< their transform()
    kNorms,      ///< 2-norms of values and direction; then the first pass finds the values where it
                 ///< writes the direction
    kValues,     ///< new values by update(), which apply() copies
  };
  /// What apply() may know of the parameter.
  struct Whole {
    at::IntArrayRef sizes;
    double norm_of_values = 0;  ///< where it needs norms
    double norm_of_direction = 0;
  };

  /// A parameter as its owner has it, in its sizes. update() changes all of it.
  struct Owned {
    at::Tensor values;
    at::Tensor gradient;                 ///< scaled
    std::span<const at::Tensor> states;  ///< by WholeState::number; undefined: none
    int64_t step;                        ///< the count, with this update
  };

  WholeUpdate() = default;
  virtual ~WholeUpdate() = default;
  WholeUpdate(const WholeUpdate&) = delete;
  WholeUpdate& operator=(const WholeUpdate&) = delete;

  virtual Needs needs() const = 0;
  /// How long transform() takes for a parameter of `sizes`, compared with other parameters.
  virtual int64_t cost(at::IntArrayRef /*sizes*/) const { return 0; }
  /// Elements of scratch memory that it needs, whatever the options are.
  virtual int64_t scratch_numel(at::IntArrayRef /*sizes*/) const { return 0; }
  /// Replaces `direction`, of the parameter's sizes in the values' dtype, by its result. `scratch`:
  /// at least scratch_numel() elements of the same dtype, one-dimensional, aligned to 64 bytes.
  virtual void transform(const Options& /*options*/, const at::Tensor& /*direction*/,
                         const at::Tensor& /*scratch*/) const {}
  virtual void update(const Options& /*options*/, const Owned& /*owned*/) const {}
  /// Updates `numel` values of a parameter by as many elements of the direction or its result.
  virtual void apply(const Options& options, const Whole& whole, float* values, const float* result,
                     int64_t numel) const = 0;
  virtual void apply(const Options& options, const Whole& whole, double* values,
                     const double* result, int64_t numel) const = 0;
};

}  // namespace tessera::internal
