#include "tessera/zero/parameters/master_values.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "tessera/core/device/device.h"
#include "tessera/core/layout/flat_buffer.h"

namespace tessera::internal {
namespace {

int64_t element_bytes(const PlannedUnit& unit) {
  return static_cast<int64_t>(c10::elementSize(unit.precision.parameters));
}

}  // namespace

MasterValues::MasterValues(const ParameterTable& table, const UnitPlan& plan,
                           const SliceMap& slices, at::Device torch_device, MemoryMeter& meter,
                           Offload offload, Values brought)
    : plan_(plan),
      slices_(slices),
      meter_(meter),
      offload_(offload),
      class_(offload == Offload::kNone ? MemoryClass::kOptimizer : MemoryClass::kHost),
      values_(plan.trainable_size()) {
  const at::NoGradGuard no_grad;
  const std::shared_ptr<Device> device =
      offload == Offload::kNone ? nullptr : device_at(torch_device);
  int64_t rounded_bytes = 0;
  for (size_t unit = 0; unit < values_.size(); ++unit) {
    const PlannedUnit& planned = plan[unit];
    if (!has_copy(unit)) continue;
    const Range kept = slices.optimizer(planned.layout);
    at::Tensor& values = values_[unit];
    const at::ScalarType dtype = planned.precision.master;
    values = device == nullptr
                 ? at::zeros({kept.numel}, at::TensorOptions(dtype).device(torch_device))
                 : device->allocate_on_host(kept.numel, dtype).zero_();
    if (planned.precision.has_masters()) {
      rounded_bytes = std::max(rounded_bytes, kept.numel * element_bytes(planned));
    }
    const std::vector<Segment> brought_segments =
        brought == Values::kOfParameters ? planned.layout.segments(kept) : std::vector<Segment>();
    for (const Segment& segment : brought_segments) {
      const at::Tensor& parameter = table[planned.parameters[segment.parameter]].tensor;
      // Copies the elements in memory order, because the flat buffer has them in that order.
      const at::Tensor dense = is_non_overlapping_dense(parameter)
                                   ? parameter.detach()
                                   : parameter.detach().contiguous();
      const at::Tensor flat = dense.as_strided({dense.numel()}, {1}, dense.storage_offset());
      values.narrow(0, segment.buffer_offset - kept.begin, segment.numel)
          .copy_(flat.narrow(0, segment.parameter_offset, segment.numel));
    }
    bytes_ += static_cast<int64_t>(values.nbytes());
  }
  meter_.add(class_, bytes_);
  if (offload == Offload::kOptimizer) {
    uploads_ = std::make_unique<ShardUploads>(device, rounded_bytes, meter);
  }
}

MasterValues::~MasterValues() { meter_.remove(class_, bytes_); }

/// Returns the optimizer slice of the parameters of `unit`.
at::Tensor MasterValues::part_of(size_t unit, const FlatParameters& flat) const {
  const Range kept = slices_.optimizer(plan_[unit].layout);
  return flat.shard(unit).narrow(0, kept.begin - flat.shard_range(unit).begin, kept.numel);
}

void MasterValues::adopt(const FlatParameters& flat) {
  for (size_t unit = 0; unit < values_.size(); ++unit) {
    if (!has_copy(unit)) values_[unit] = part_of(unit, flat);
  }
}

void MasterValues::store(size_t unit, const FlatParameters& flat) {
  if (has_copy(unit)) show(unit, values_[unit], flat);
}

void MasterValues::show(size_t unit, const at::Tensor& values, const FlatParameters& flat) {
  if (uploads_ != nullptr) {
    uploads_->start(part_of(unit, flat), values);
  } else {
    part_of(unit, flat).copy_(values);
  }
}

void MasterValues::join() {
  if (uploads_ != nullptr) uploads_->join();
}

void MasterValues::await() {
  if (uploads_ != nullptr) uploads_->await();
}

void MasterValues::load(size_t unit, const FlatParameters& flat) {
  if (has_copy(unit)) values_[unit].copy_(part_of(unit, flat));
}

void MasterValues::load_copies(const FlatParameters& flat) {
  for (size_t unit = 0; unit < values_.size(); ++unit) {
    if (!plan_[unit].precision.has_masters()) load(unit, flat);
  }
}

}  // namespace tessera::internal
