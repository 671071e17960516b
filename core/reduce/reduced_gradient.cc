#include "tessera/core/reduce/reduced_gradient.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>

namespace tessera::internal {

using Level = GradientCommunicator::Level;

ReducedGradient::ReducedGradient(GradientCommunicator& communicator, const PlannedUnit& unit,
                                 const SliceMap& slices, double divisor, Keep keep,
                                 MemoryMeter& meter)
    : communicator_(&communicator),
      unit_(&unit),
      meter_(&meter),
      divisor_(divisor),
      divides_by_(
          at::scalar_tensor(divisor == 0.0 ? slices.world_size() : divisor, unit.precision.reduce)),
      is_whole_(slices.degrees().optimizer == 1),
      keeps_sums_(communicator.keeps_partial_sums()),
      adds_as_tree_(communicator.order() == SumOrder::kBinaryTree),
      atom_range_(slices.atom(unit.layout)),
      kept_(slices.optimizer(unit.layout)),
      own_range_(keeps_sums_ ? slices.gradients(unit.layout) : kept_),
      reduces_in_own_(keep == Keep::kUntilStep && !keeps_sums_ &&
                      !keeps_gradient_buffers(slices.degrees()) &&
                      communicator.stages(Level::kMicroStep) == 1 &&
                      unit.precision.communication == unit.precision.reduce) {
  if (keeps_gradient_buffers(slices.degrees())) {
    kept_buffer_ = communicator.allocate(unit.layout.numel(), unit.precision.communication);
    meter.add(MemoryClass::kGradientBuffers, static_cast<int64_t>(kept_buffer_.nbytes()));
  }
  const bool may_stay_in_buffer =
      kept_buffer_.defined() && unit.precision.communication == unit.precision.reduce;
  if (keep == Keep::kUntilStep && !may_stay_in_buffer) make_own();
}

ReducedGradient::ReducedGradient(ReducedGradient&& other) noexcept = default;

ReducedGradient::~ReducedGradient() {
  const auto forget = [this](const at::Tensor& sum) {
    meter_->remove(MemoryClass::kGradients, static_cast<int64_t>(sum.nbytes()));
  };
  if (own_.defined()) forget(own_);
  for (const at::Tensor& sum : accumulator_.partial_sums()) forget(sum);
  if (kept_buffer_.defined()) {
    meter_->remove(MemoryClass::kGradientBuffers, static_cast<int64_t>(kept_buffer_.nbytes()));
  }
}

at::Tensor ReducedGradient::make_sum() {
  at::Tensor sum = communicator_->allocate(own_range_.numel, unit_->precision.reduce);
  meter_->add(MemoryClass::kGradients, static_cast<int64_t>(sum.nbytes()));
  return sum;
}

void ReducedGradient::make_own() {
  own_ = make_sum();
  own_.zero_();
}

const at::Tensor& ReducedGradient::whole() const {
  static const at::Tensor kNone;
  return is_whole_ ? own_ : kNone;
}

at::Tensor ReducedGradient::gradient_buffer() {
  if (kept_buffer_.defined()) {
    keep();
    return kept_buffer_;
  }
  return is_whole_ && reduces_in_own_ && !own_is_taken_ && !value_.defined() ? own_ : at::Tensor();
}

std::shared_ptr<Work> ReducedGradient::reduce(const at::Tensor& gradients) {
  const auto start = [&](const at::Tensor& part, ReduceOp op) {
    const double divisor = op == ReduceOp::kAvg ? divisor_ : 0.0;
    return communicator_->start(Level::kMicroStep, *unit_, gradients, part, op, divisor);
  };
  if (keeps_sums_) {
    return start(gradients.narrow(0, own_range_.begin, own_range_.numel), ReduceOp::kSum);
  }
  if (is_whole_) {
    if (owns(gradients)) own_is_taken_ = true;
    return start(gradients, ReduceOp::kAvg);
  }
  const bool in_own = reduces_in_own_ && !own_is_taken_;
  if (in_own) own_is_taken_ = true;
  return start(in_own ? own_ : gradients.narrow(0, atom_range_.begin, atom_range_.numel),
               ReduceOp::kAvg);
}

std::shared_ptr<Work> ReducedGradient::gather(const at::Tensor& gradients,
                                              std::shared_ptr<Work> after) {
  // Returns here, before the calls of narrow() below, because narrow() allocates memory.
  if (communicator_->stages(Level::kMicroStep) == 1) return nullptr;
  return communicator_->advance(Level::kMicroStep, *unit_,
                                gradients.narrow(0, atom_range_.begin, atom_range_.numel),
                                gradients.narrow(0, kept_.begin, kept_.numel), std::move(after));
}

void ReducedGradient::add(const at::Tensor& gradients) {
  if (keeps_sums_) {
    const at::Tensor part = gradients.narrow(0, own_range_.begin, own_range_.numel);
    if (value_.defined()) take_up_sums();
    if (has_sums_) {
      own_.add_(part);
    } else {
      own_.copy_(part);
    }
    has_sums_ = true;
    return;
  }
  // If the step's first reduction has left its result in own_, own_ becomes the value.
  if (own_is_taken_ && !value_.defined()) {
    value_ = own_;
    return;
  }
  const at::Tensor part = gradients.narrow(0, kept_.begin, kept_.numel);
  if (value_.defined() && adds_as_tree_) {
    accumulator_.add(value_, part, [this] { return make_sum(); });
  } else if (value_.defined()) {
    value_.add_(part);
  } else if (own_.defined()) {
    own_.copy_(part);
    value_ = own_;
  } else {
    value_ = part;
  }
}

void ReducedGradient::keep() {
  if (!value_.defined() || own_.defined()) return;
  make_own();
  own_.copy_(value_);
  value_ = own_;
}

std::shared_ptr<Work> ReducedGradient::reduce_sums() {
  TORCH_INTERNAL_ASSERT(has_sums_);
  return communicator_->start(Level::kStep, *unit_, own_, of_own(atom_range_), ReduceOp::kSum,
                              /*divisor=*/0.0);
}

std::shared_ptr<Work> ReducedGradient::gather_sums() {
  if (communicator_->stages(Level::kStep) == 1) return nullptr;
  return communicator_->advance(Level::kStep, *unit_, of_own(atom_range_), of_own(kept_),
                                /*after=*/nullptr);
}

void ReducedGradient::divide() {
  value_ = of_own(kept_).div_(divides_by_);
  has_sums_ = false;
}

// Turns the mean into a partial sum again: this rank contributes its atom, and zeros elsewhere.
void ReducedGradient::take_up_sums() {
  of_own(atom_range_).mul_(divides_by_);
  own_.narrow(0, 0, atom_range_.begin - own_range_.begin).zero_();
  own_.narrow(0, atom_range_.end() - own_range_.begin, own_range_.end() - atom_range_.end())
      .zero_();
  value_.reset();
  has_sums_ = true;
}

void ReducedGradient::drop(Range range) {
  const auto zero = [range](const at::Tensor& buffer, Range held) {
    const int64_t begin = std::max(range.begin, held.begin);
    const int64_t end = std::min(range.end(), held.end());
    if (begin < end) of(buffer, held, {begin, end - begin}).zero_();
  };
  if (has_sums_) zero(own_, own_range_);
  if (!value_.defined()) return;
  zero(value_, kept_);
  for (size_t i = 0; i < accumulator_.used(); ++i) zero(accumulator_.partial_sums()[i], kept_);
}

void ReducedGradient::clear() {
  value_.reset();
  accumulator_.clear();
  own_is_taken_ = false;
  has_sums_ = false;
}

}  // namespace tessera::internal
