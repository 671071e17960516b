#include "tessera/zero/step/offloaded_gradients.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "tessera/optim/cuda/step_words.h"

namespace tessera::internal {

// Note [Offload]
// Three kinds of data are copied between host and device, each on its own stream beside the
// computation, ordered by events:
//   gradients, device to host (here): the copy waits for the reduction. The next writer of the
//   device's buffer waits for the copy. The host waits for the copy before it reads.
//   new values, host to device (ShardUploads): the copy waits for the computation that still reads
//   the old values. After the last update the computation waits for all copies. The host waits for
//   the copy before it overwrites the source.
//   shards, host to device (ShardUploads, Offload::kParameters): the copy waits for the previous
//   user of the unsharded-parameter buffer. The gather waits for the copy, and so does the host
//   before it updates a shard.
// The host waits only where it needs a value, and most copies have finished by then: gradients are
// copied during the rest of backward, a unit's new values while the next unit is updated.

OffloadedGradients::OffloadedGradients(const ParameterTable& table, const UnitPlan& plan,
                                       const SliceMap& slices, std::shared_ptr<const cuda::Api> api,
                                       std::shared_ptr<Device> device, MemoryMeter& meter)
    : plan_(plan),
      slices_(slices),
      meter_(meter),
      device_(std::move(device)),
      stream_(device_->make_stream(Device::Priority::kDefault)),
      is_visible_(slices.degrees().optimizer == 1),
      sums_(table, plan, slices, std::move(api), device_),
      counts_(device_->allocate_on_host(static_cast<int64_t>(table.size()), at::kLong)),
      counted_(device_->make_event()),
      counts_arrived_(device_->make_event()) {
  int64_t widened_numel = 0;
  at::ScalarType widest = at::kFloat;
  for (size_t unit = 0; unit < plan.trainable_size(); ++unit) {
    const UnitPrecision& precision = plan[unit].precision;
    const int64_t numel = slices.optimizer(plan[unit].layout).numel;
    units_.push_back({.memory = device_->allocate_on_host(numel, precision.reduce),
                      .reduced = device_->make_event(),
                      .arrived = device_->make_event()});
    bytes_on_host_ += static_cast<int64_t>(units_.back().memory.nbytes());
    if (precision.reduce == precision.master) continue;
    widened_numel = std::max(widened_numel, numel);
    widest = precision.master;  // Float for all units, as the kernels on the device require
  }
  if (widened_numel > 0) {
    widened_ = device_->allocate_on_host(widened_numel, widest);
    bytes_on_host_ += static_cast<int64_t>(widened_.nbytes());
  }
  meter_.add(MemoryClass::kHost, bytes_on_host_);
}

OffloadedGradients::~OffloadedGradients() { meter_.remove(MemoryClass::kHost, bytes_on_host_); }

void OffloadedGradients::unreduced(size_t unit, const at::Tensor& buffer) {
  sums_.count_non_finite(unit, buffer);
}

void OffloadedGradients::reduced(size_t unit, const at::Tensor& value) {
  if (!is_visible_) start(unit, value);
}

void OffloadedGradients::start(size_t unit, const at::Tensor& value) {
  Slice& slice = units_[unit];
  device_->current_stream()->record(*slice.reduced);
  stream_->wait(*slice.reduced);
  stream_->copy(slice.memory, value);
  stream_->record(*slice.arrived);
  slice.is_under_way = true;
}

void OffloadedGradients::rewriting(size_t unit) {
  Slice& slice = units_[unit];
  if (!slice.is_under_way) return;
  device_->current_stream()->wait(*slice.arrived);
  slice.is_under_way = false;
}

void OffloadedGradients::finish(const Reducer& reducer) {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    const at::Tensor& value = reducer.value(unit);
    if (value.defined() && !units_[unit].is_under_way) start(unit, value);
  }
  device_->current_stream()->record(*counted_);
  stream_->wait(*counted_);
  stream_->copy(counts_, sums_.words().narrow(0, cuda::kNonFiniteAt, counts_.numel()));
  stream_->record(*counts_arrived_);
}

std::span<const int64_t> OffloadedGradients::non_finite() {
  counts_arrived_->synchronize();
  return {counts_.const_data_ptr<int64_t>(), static_cast<size_t>(counts_.numel())};
}

const at::Tensor& OffloadedGradients::await(size_t unit) {
  Slice& slice = units_[unit];
  TORCH_INTERNAL_ASSERT(slice.is_under_way);
  slice.arrived->synchronize();
  return slice.memory;
}

void OffloadedGradients::add_to(GradientNorms& norms) {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (!units_[unit].is_under_way) continue;
    const FlatLayout& layout = plan_[unit].layout;
    norms.add(plan_[unit], slices_.atom(layout), await(unit), slices_.optimizer(layout).begin);
  }
}

at::Tensor OffloadedGradients::gradient(size_t unit) {
  const at::Tensor& value = await(unit);
  if (value.scalar_type() == plan_[unit].precision.master) return value;
  const at::NoGradGuard no_grad;
  return widened_.narrow(0, 0, value.numel()).copy_(value);
}

void OffloadedGradients::drop() {
  for (size_t unit = 0; unit < units_.size(); ++unit) rewriting(unit);
  sums_.clear();
}

void OffloadedGradients::drop(size_t parameter) {
  sums_.words().narrow(0, cuda::kNonFiniteAt + static_cast<int64_t>(parameter), 1).zero_();
}

}  // namespace tessera::internal
