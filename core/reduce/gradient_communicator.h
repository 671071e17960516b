#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "tessera/core/layout/slice_map.h"
#include "tessera/core/reduce/byte_counting_group.h"
#include "tessera/core/reduce/registered_hook.h"
#include "tessera/parameter_table.h"
#include "tessera/process_group.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// Chooses the collectives that reduce gradients: the group's own reductions, for every value of
/// Degrees (Note [Slice map] says which ranks combine what), or those of a registered communication
/// hook. A reduction has up to two stages. start() combines the contributions of all ranks and
/// leaves a part of the result on each rank; advance() then completes the part. Both are
/// collective: every rank calls them in the same order.
///
/// Under SumOrder::kBinaryTree each micro-step is combined over all ranks, whatever the degrees
/// are, because the tree adds over all ranks before it adds over micro-steps. A hook needs
/// gradients that every rank keeps whole until they are reduced (g = 1). It reduces them in one
/// stage, and every rank gets the whole result.
class GradientCommunicator {
 public:
  /// Which sums a reduction combines over ranks. A step that keeps partial sums (1 < g < o) has
  /// reductions at both levels; other steps have them at kMicroStep only.
  enum class Level : uint8_t {
    kMicroStep,  ///< the contributions of one backward
    kStep,       ///< the partial sums over a step's micro-steps
  };

  /// References and `registered` (null if there is never a hook) must outlive the object. A
  /// backward reduces `buckets` units. Collective, because it makes subgroups.
  GradientCommunicator(ProcessGroup& group, const ParameterTable& table, size_t buckets,
                       const SliceMap& slices, SumOrder order, const RegisteredHook* registered);

  /// Returns true if a step also has reductions at Level::kStep.
  bool keeps_partial_sums() const { return within_sums_ != nullptr; }
  /// Returns the order in which start() adds. The sum over a step's micro-steps has the same order:
  /// under kRanks it adds term by term, under kBinaryTree it continues the tree.
  SumOrder order() const { return order_; }
  /// Returns the number of stages of a reduction: 2 if advance() has something to do, else 1.
  int stages(Level level) const {
    const bool is_partial = level == Level::kMicroStep && keeps_partial_sums();
    return is_partial || replicas_ == nullptr ? 1 : 2;
  }

  /// Returns memory for start() and advance(), uninitialised: [numel]. Local.
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) { return all_.allocate(numel, dtype); }

  /// Called at the beginning of a backward, or of a pass over all units that reduces what no_sync()
  /// left. Local.
  void begin_micro_step() { started_ = 0; }

  /// Combines `full` [numel], the gradients of `unit`, over ranks by `op`; kAvg divides the sum by
  /// `divisor` (0: the number of ranks) before rounding. `part` receives the result. It is `full`
  /// itself, or this rank's slice of `full` at this level, or other memory of that slice's size.
  /// Collective.
  std::shared_ptr<Work> start(Level level, const PlannedUnit& unit, const at::Tensor& full,
                              const at::Tensor& part, ReduceOp op, double divisor);

  /// Gathers the parts into `whole`, of which `part` is a slice. Returns null if `part` is all that
  /// this rank keeps. `after` is the Work of start(): when it is complete, the gather begins. Null
  /// if the caller has waited for it. Collective over the ranks that complete a part.
  std::shared_ptr<Work> advance(Level level, const PlannedUnit& unit, const at::Tensor& part,
                                const at::Tensor& whole, std::shared_ptr<Work> after);

  /// Returns the bytes that the last start() with `full` passed to collectives.
  int64_t sent_bytes(const at::Tensor& full) const {
    return hook() != nullptr ? hook_bytes_ : static_cast<int64_t>(full.nbytes());
  }

 private:
  CommHook* hook() const { return registered_ != nullptr ? registered_->hook() : nullptr; }
  void run_hook(const PlannedUnit& unit, const at::Tensor& full, double divisor);
  at::Tensor result_of_hook(const GradBucket& bucket);

  ProcessGroup& all_;
  const ParameterTable& table_;
  const size_t buckets_;
  const SumOrder order_;
  const RegisteredHook* const registered_;
  ByteCountingGroup counted_;  // wraps `all_`; passed to the hook
  size_t started_ = 0;         // buckets started in this micro-step
  int64_t hook_bytes_ = 0;     // bytes sent by the hook for its last bucket
  // Groups of the ranks that differ only in the coordinates named here (Note [Slice map]). Each is
  // null if it would have one rank or all ranks, or if the degrees do not need it.
  std::shared_ptr<ProcessGroup> replicas_;     // ranks that share an optimizer slice (d differs)
  std::shared_ptr<ProcessGroup> within_sums_;  // ranks that add in a micro-step (a and b differ)
  std::shared_ptr<ProcessGroup> across_sums_;  // ranks that add partial sums (c and d differ)
  const bool is_whole_;                        // every rank keeps the whole result (o = 1)
  const int gradient_slice_;                   // slice number for reduce_scatter over within_sums_
  const int atom_;                             // slice number for reduce_scatter over all ranks
  const int atom_across_sums_;                 // slice number for reduce_scatter over across_sums_
};

}  // namespace tessera::internal
