#include "tessera/core/step/gradient_norms.h"

namespace tessera::internal {

double scaled_limit(double max_value, double loss_scale, at::ScalarType dtype) {
  const double limit = max_value * loss_scale;
  return dtype == at::kDouble ? limit : static_cast<double>(static_cast<float>(limit));
}

GradientNorms::GradientNorms(const Clipping& clipping, double loss_scale)
    : clipping_(clipping),
      loss_scale_(loss_scale),
      sums_(clipping.max_norms.size(), NormSum(clipping.norm_type)) {}

void GradientNorms::add(const PlannedUnit& unit, Range own, const at::Tensor& value,
                        int64_t begin) {
  const double limit = scaled_limit(clipping_.max_value, loss_scale_, unit.precision.master);
  for (Segment segment : unit.layout.segments(own)) {
    segment.buffer_offset -= begin;
    sums_[clipping_.group(unit.parameters[segment.parameter])].add(value, segment, limit);
  }
}

}  // namespace tessera::internal
