#include "tessera/core/reduce/mean_over_ranks.h"

#include <algorithm>
#include <string>

namespace tessera::internal {

using Axis = SliceMap::Axis;

MeanOverRanks::MeanOverRanks(ProcessGroup& group, const SliceMap& slices, SumOrder order)
    : all_(group),
      order_(order),
      is_whole_(slices.degrees().optimizer == 1),
      gradient_slice_(slices.gradient_slice()),
      atom_(slices.atom()),
      atom_across_sums_(slices.atom() %
                        (slices.world_size() / std::max(slices.degrees().gradients, 1))) {
  const int replicas = slices.extent(Axis::kReplicas);
  if (replicas > 1 && replicas < group.size()) {
    replicas_ = split(group, slices.colors({Axis::kReplicas}), "reduce replicas");
  }
  if (order == SumOrder::kRanks && tessera::keeps_partial_sums(slices.degrees())) {
    within_sums_ =
        split(group, slices.colors({Axis::kParameters, Axis::kGradients}), "reduce within");
    across_sums_ =
        split(group, slices.colors({Axis::kOptimizer, Axis::kReplicas}), "reduce across");
  }
}

std::shared_ptr<Work> MeanOverRanks::start(Level level, const PlannedUnit& unit,
                                           const at::Tensor& full, const at::Tensor& part,
                                           ReduceOp op, double divisor) {
  const std::string& tag = unit.name;
  if (level == Level::kStep) {
    return across_sums_->reduce_scatter(part, full, op, tag, atom_across_sums_, divisor);
  }
  if (keeps_partial_sums())
    return within_sums_->reduce_scatter(part, full, op, tag, gradient_slice_, divisor);
  if (is_whole_) return all_.all_reduce(full, op, tag, divisor, order_);
  return all_.reduce_scatter(part, full, op, tag, atom_, divisor, order_);
}

std::shared_ptr<Work> MeanOverRanks::advance(Level level, const PlannedUnit& unit,
                                             const at::Tensor& part, const at::Tensor& whole) {
  if (stages(level) == 1) return nullptr;
  return replicas_->all_gather(whole, part, unit.name);
}

std::unique_ptr<GradientCommunicator> make_mean_over_ranks(ProcessGroup& group,
                                                           const SliceMap& slices,
                                                           MemoryMeter& /*meter*/) {
  return std::make_unique<MeanOverRanks>(group, slices);
}

}  // namespace tessera::internal
