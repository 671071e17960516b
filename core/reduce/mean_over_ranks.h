#pragma once

#include <memory>

#include "tessera/core/layout/slice_map.h"
#include "tessera/core/reduce/gradient_communicator.h"
#include "tessera/memory_meter.h"
#include "tessera/process_group.h"

namespace tessera::internal {

/// Gradients as they are, by the group's own reductions: for every value of Degrees. Note [Slice
/// map] says which ranks combine what. In a tree's order all ranks combine each micro-step,
/// whatever the degrees are: partial sums over micro-steps would stand in the middle of the tree.
class MeanOverRanks final : public GradientCommunicator {
 public:
  /// `group` must outlive it. Collective; sends nothing but what making subgroups takes.
  MeanOverRanks(ProcessGroup& group, const SliceMap& slices, SumOrder order = SumOrder::kRanks);

  SumOrder order() const override { return order_; }
  bool keeps_partial_sums() const override { return within_sums_ != nullptr; }
  int stages(Level level) const override {
    const bool is_partial = level == Level::kMicroStep && keeps_partial_sums();
    return is_partial || replicas_ == nullptr ? 1 : 2;
  }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return all_.allocate(numel, dtype);
  }
  std::shared_ptr<Work> start(Level level, const PlannedUnit& unit, const at::Tensor& full,
                              const at::Tensor& part, ReduceOp op, double divisor) override;
  std::shared_ptr<Work> advance(Level level, const PlannedUnit& unit, const at::Tensor& part,
                                const at::Tensor& whole, std::shared_ptr<Work> after) override;

 private:
  ProcessGroup& all_;
  const SumOrder order_;
  // Null where they would hold one rank or all, or where the degrees do not need them.
  std::shared_ptr<ProcessGroup> replicas_;     // ranks that share an optimizer slice (d differs)
  std::shared_ptr<ProcessGroup> within_sums_;  // a and b differ: what each micro-step sums over
  std::shared_ptr<ProcessGroup> across_sums_;  // c and d differ: what the end of a step adds
  const bool is_whole_;                        // every rank keeps everything
  const int gradient_slice_;                   // slice numbers for reduce_scatter
  const int atom_;                             // of all ranks
  const int atom_across_sums_;                 // of the ranks that add partial sums
};

/// Reducer::Setting's default. Collective.
std::unique_ptr<GradientCommunicator> make_mean_over_ranks(ProcessGroup& group,
                                                           const SliceMap& slices,
                                                           MemoryMeter& meter);

}  // namespace tessera::internal
