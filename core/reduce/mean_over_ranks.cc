#include "tessera/core/reduce/mean_over_ranks.h"

#include <algorithm>
#include <utility>

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
  Collective call{.op = Op::kReduceScatter,
                  .output = part,
                  .input = full,
                  .reduce = op,
                  .divisor = divisor,
                  .slice = atom_,
                  .posted = true,
                  .tag = unit.name};
  if (level == Level::kStep) {
    call.slice = atom_across_sums_;
    return across_sums_->check_and_run(call);
  }
  if (keeps_partial_sums()) {
    call.slice = gradient_slice_;
    return within_sums_->check_and_run(call);
  }
  call.order = order_;
  if (is_whole_) {
    call.op = Op::kAllReduce;
    call.output = full;
    call.slice = -1;
  }
  return all_.check_and_run(call);
}

std::shared_ptr<Work> MeanOverRanks::advance(Level level, const PlannedUnit& unit,
                                             const at::Tensor& part, const at::Tensor& whole,
                                             std::shared_ptr<Work> after) {
  if (stages(level) == 1) return nullptr;
  return replicas_->check_and_run({.op = Op::kAllGather,
                                   .output = whole,
                                   .input = part,
                                   .posted = true,
                                   .after = std::move(after),
                                   .tag = unit.name});
}

std::unique_ptr<GradientCommunicator> make_mean_over_ranks(ProcessGroup& group,
                                                           const SliceMap& slices,
                                                           MemoryMeter& /*meter*/) {
  return std::make_unique<MeanOverRanks>(group, slices);
}

}  // namespace tessera::internal
