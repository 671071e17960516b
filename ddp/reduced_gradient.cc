#include "tessera/ddp/reduced_gradient.h"

#include <algorithm>
#include <utility>

namespace tessera {

ReducedGradient::ReducedGradient(ProcessGroup& group, const FlatLayout& layout, Degrees degrees,
                                 MemoryMeter& meter)
    : group_(&group),
      layout_(&layout),
      meter_(&meter),
      is_whole_(degrees.optimizer == 1),
      stays_in_landing_(degrees.gradients < degrees.optimizer),
      kept_(is_whole_ ? Range{0, layout.numel()} : layout.slice_range(group.rank())) {
  if (!stays_in_landing_) make_own();
}

ReducedGradient::ReducedGradient(ReducedGradient&& other) noexcept
    : group_(other.group_),
      layout_(other.layout_),
      meter_(other.meter_),
      is_whole_(other.is_whole_),
      stays_in_landing_(other.stays_in_landing_),
      kept_(other.kept_),
      own_(std::exchange(other.own_, at::Tensor())),
      value_(std::exchange(other.value_, at::Tensor())) {}

ReducedGradient::~ReducedGradient() {
  if (own_.defined()) meter_->remove(MemoryClass::kGradients, static_cast<int64_t>(own_.nbytes()));
}

void ReducedGradient::make_own() {
  own_ = group_->allocate(kept_.numel, layout_->dtype());
  own_.zero_();
  meter_->add(MemoryClass::kGradients, static_cast<int64_t>(own_.nbytes()));
}

std::shared_ptr<Work> ReducedGradient::reduce(const at::Tensor& landing, std::string_view tag) {
  if (is_whole_) return group_->all_reduce(landing, ReduceOp::kAvg, tag);
  return group_->reduce_scatter(landing.narrow(0, kept_.begin, kept_.numel), landing,
                                ReduceOp::kAvg, tag);
}

void ReducedGradient::add(const at::Tensor& landing) {
  const at::Tensor part = landing.narrow(0, kept_.begin, kept_.numel);
  if (value_.defined()) {
    value_.add_(part);
  } else if (stays_in_landing_) {
    value_ = part;
  } else {
    own_.copy_(part);
    value_ = own_;
  }
}

void ReducedGradient::vacate() {
  if (!value_.defined() || value_.is_same(own_)) return;
  if (!own_.defined()) make_own();
  own_.copy_(value_);
  value_ = own_;
}

void ReducedGradient::drop(Range range) {
  if (!value_.defined()) return;
  const int64_t begin = std::max(range.begin, kept_.begin);
  const int64_t end = std::min(range.end(), kept_.end());
  if (begin < end) value_.narrow(0, begin - kept_.begin, end - begin).zero_();
}

}  // namespace tessera
