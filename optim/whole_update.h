#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace tessera::internal {

/// What the host does with a parameter as a whole, under an algorithm that is not elementwise.
///
/// Note [Whole tensors]
/// An update has two elementwise passes and something between them. The first, ElementUpdate's
/// apply(), updates the states and writes a direction where it is told to, instead of the values.
/// transform() makes the whole direction of a parameter a result; the second pass, apply() here,
/// updates the values by it. So values and states stay cut into slices; a direction travels to one
/// rank and its result back (zero/step/direction_exchange.h), or nowhere where a rank has all
/// slices. The bits do not depend on the slices, because transform() gets the same elements in
/// memory of its own, with the same strides and alignment. They may depend on at::get_num_threads()
/// of the rank that transforms, as any matrix product's do.
class WholeUpdate {
 public:
  using Options = torch::optim::OptimizerOptions;

  WholeUpdate() = default;
  virtual ~WholeUpdate() = default;
  WholeUpdate(const WholeUpdate&) = delete;
  WholeUpdate& operator=(const WholeUpdate&) = delete;

  /// How long transform() takes for a parameter of `sizes`, compared with other parameters.
  virtual int64_t cost(at::IntArrayRef sizes) const = 0;
  /// Elements of scratch memory that it needs, whatever the options are.
  virtual int64_t scratch_numel(at::IntArrayRef sizes) const = 0;
  /// Replaces `direction`, of the parameter's sizes in the values' dtype, by its result. `scratch`:
  /// at least scratch_numel() elements of the same dtype, one-dimensional, aligned to 64 bytes.
  virtual void transform(const Options& options, const at::Tensor& direction,
                         const at::Tensor& scratch) const = 0;
  /// Updates `numel` values of a parameter of `sizes` by as many elements of the result.
  virtual void apply(const Options& options, at::IntArrayRef sizes, float* values,
                     const float* result, int64_t numel) const = 0;
  virtual void apply(const Options& options, at::IntArrayRef sizes, double* values,
                     const double* result, int64_t numel) const = 0;
};

}  // namespace tessera::internal
