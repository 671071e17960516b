#include "tessera/zero/master_values.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "tessera/core/layout/flat_buffer.h"

namespace tessera {

MasterValues::MasterValues(const ParameterTable& table, const UnitPlan& plan,
                           const SliceMap& slices, at::Device place, MemoryMeter& meter)
    : plan_(plan), slices_(slices), meter_(meter), values_(plan.trainable_size()) {
  const at::NoGradGuard no_grad;
  for (size_t unit = 0; unit < values_.size(); ++unit) {
    const PlannedUnit& planned = plan[unit];
    if (!planned.precision.has_masters()) continue;
    const Range kept = slices.optimizer(planned.layout);
    at::Tensor& values = values_[unit];
    values = at::zeros({kept.numel}, at::TensorOptions(planned.precision.master).device(place));
    for (const Segment& segment : planned.layout.segments(kept)) {
      const at::Tensor& parameter = table[planned.parameters[segment.parameter]].tensor;
      // In memory order, which is that of the flat buffer.
      const at::Tensor dense = is_non_overlapping_dense(parameter)
                                   ? parameter.detach()
                                   : parameter.detach().contiguous();
      const at::Tensor flat = dense.as_strided({dense.numel()}, {1}, dense.storage_offset());
      values.narrow(0, segment.buffer_offset - kept.begin, segment.numel)
          .copy_(flat.narrow(0, segment.parameter_offset, segment.numel));
    }
    bytes_ += static_cast<int64_t>(values.nbytes());
  }
  meter_.add(MemoryClass::kOptimizer, bytes_);
}

MasterValues::~MasterValues() { meter_.remove(MemoryClass::kOptimizer, bytes_); }

/// The optimizer slice of the parameters of `unit`.
at::Tensor MasterValues::part_of(size_t unit, const FlatParameters& flat) const {
  const Range kept = slices_.optimizer(plan_[unit].layout);
  return flat.shard(unit).narrow(0, kept.begin - flat.shard_range(unit).begin, kept.numel);
}

void MasterValues::adopt(const FlatParameters& flat) {
  for (size_t unit = 0; unit < values_.size(); ++unit) {
    if (!plan_[unit].precision.has_masters()) values_[unit] = part_of(unit, flat);
  }
}

void MasterValues::store(size_t unit, const FlatParameters& flat) const {
  if (plan_[unit].precision.has_masters()) part_of(unit, flat).copy_(values_[unit]);
}

void MasterValues::load(size_t unit, const FlatParameters& flat) {
  if (plan_[unit].precision.has_masters()) values_[unit].copy_(part_of(unit, flat));
}

}  // namespace tessera
