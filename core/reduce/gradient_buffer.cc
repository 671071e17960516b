#include "tessera/core/reduce/gradient_buffer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <c10/core/InferenceMode.h>

#include "tessera/core/layout/flat_buffer.h"
#include "tessera/core/layout/readable.h"
#include "tessera/core/reduce/finite_kernels.h"

namespace tessera::internal {
namespace {

bool is_on_host(const at::Tensor& buffer) { return buffer.device().is_cpu(); }

void fill_zero(const at::Tensor& buffer, int64_t begin, int64_t end) {
  if (end <= begin) return;
  if (!is_on_host(buffer)) {
    buffer.narrow(0, begin, end - begin).zero_();
    return;
  }
  const auto element = static_cast<int64_t>(buffer.element_size());
  std::memset(static_cast<char*>(buffer.mutable_data_ptr()) + begin * element, 0,
              static_cast<size_t>((end - begin) * element));
}

}  // namespace

GradientBuffer::GradientBuffer(const ParameterTable& table, const PlannedUnit& unit)
    : table_(table), unit_(unit), state_(unit.parameters.size(), State::kUndefined) {}

void GradientBuffer::open(at::Tensor buffer) {
  TORCH_INTERNAL_ASSERT(!is_open() && buffer.numel() == unit_.layout.numel() &&
                        buffer.scalar_type() == unit_.precision.communication);
  buffer_ = std::move(buffer);
  std::fill(state_.begin(), state_.end(), State::kUndefined);
  received_now_ = 0;
  is_filled_ = false;
}

at::Tensor GradientBuffer::close() { return std::exchange(buffer_, at::Tensor()); }

void GradientBuffer::begin_micro_step() {
  for (State& state : state_) {
    if (state == State::kNow) state = State::kOld;
  }
  received_now_ = 0;
}

int64_t GradientBuffer::receive(size_t position, const at::Tensor& given, double weight) {
  at::Tensor gradient = in_memory(given);
  // LibTorch adds sparse elements at the wrong place of a view, because it counts the view's offset
  // twice.
  if (gradient.is_sparse() && gradient.dense_dim() == 0) gradient = gradient.to_dense();
  const at::Tensor& parameter = table_[unit_.parameters[position]].tensor;
  const Range range = unit_.layout.parameter_range(position);
  State& state = state_[position];
  if (state != State::kNow) ++received_now_;
  if (range.numel == 0) {  // an empty buffer has no address to copy to
    state = State::kNow;
    return 0;
  }
  // After fill_missing() the place holds zeros, to which the gradient is added.
  const bool is_first = state == State::kUndefined && !is_filled_;

  if (is_on_host(buffer_) && is_first && weight == 1.0 && !gradient.is_sparse() &&
      gradient.scalar_type() == buffer_.scalar_type() &&
      gradient.strides() == parameter.strides() && is_non_overlapping_dense(parameter)) {
    state = State::kNow;
    return copy_counting_non_finite(buffer_, range, gradient.const_data_ptr());
  }
  at::Tensor place = view_like(buffer_, range, parameter);
  if (is_first && weight == 1.0 && !gradient.is_sparse()) {
    place.copy_(gradient);
  } else {
    if (is_first) place.zero_();
    if (weight != 0.0) place.add_(gradient, weight);
  }
  state = State::kNow;
  return is_on_host(buffer_) ? count_non_finite(buffer_, range) : 0;
}

void GradientBuffer::fill_missing() {
  if (is_filled_) return;
  int64_t end_of_last = 0;
  for (size_t position = 0; position < state_.size(); ++position) {
    const Range range = unit_.layout.parameter_range(position);
    fill_zero(buffer_, end_of_last, range.begin);
    if (state_[position] == State::kUndefined) fill_zero(buffer_, range.begin, range.end());
    end_of_last = range.end();
  }
  fill_zero(buffer_, end_of_last, unit_.layout.numel());
  is_filled_ = true;
}

void GradientBuffer::drop(size_t position) {
  const Range range = unit_.layout.parameter_range(position);
  if (state_[position] == State::kNow) --received_now_;
  state_[position] = State::kUndefined;
  fill_zero(buffer_, range.begin, range.end());
}

}  // namespace tessera::internal
