#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/step/clipping.h"
#include "tessera/core/step/norm_sum.h"
#include "tessera/flat_layout.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// Returns the limit on an element's magnitude for clipping by value, for a gradient in `dtype`
/// that is still multiplied with `loss_scale`.
double scaled_limit(double max_value, double loss_scale, at::ScalarType dtype);

/// Adds up this rank's part of the gradient norms that clipping needs: one norm of all gradients,
/// or one for each parameter group. Clips by value before adding. Which elements count does not
/// depend on the strategy. Local.
class GradientNorms {
 public:
  /// For gradients multiplied with `loss_scale`. `clipping` must outlive it.
  GradientNorms(const Clipping& clipping, double loss_scale);

  /// Adds the mean gradient of the range `own` of `unit`, without padding. `value` holds the mean
  /// gradient from element `begin` of `unit` on.
  void add(const PlannedUnit& unit, Range own, const at::Tensor& value, int64_t begin);

  /// Returns one sum for each of Clipping::max_norms.
  const std::vector<NormSum>& sums() const { return sums_; }

 private:
  const Clipping& clipping_;
  const double loss_scale_;
  std::vector<NormSum> sums_;
};

}  // namespace tessera::internal
