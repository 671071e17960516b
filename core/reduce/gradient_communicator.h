#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "tessera/process_group.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// Which collectives reduce gradients, and in which form they are sent. A reduction has up to two
/// stages: start() combines every rank's contribution and leaves each rank a part of the result,
/// advance() completes the part, begun when the first has finished. Both are collective: every rank
/// calls them in the same order. A wrapper around another communicator
/// may send the data in another form (another dtype, say), but takes it from `full` and leaves the
/// result in `part` and `whole`.
class GradientCommunicator {
 public:
  /// What is combined. A step that keeps partial sums (1 < g < o) combines twice.
  enum class Level : uint8_t {
    kMicroStep,  ///< the contributions of one backward
    kStep,       ///< partial sums of all its micro-steps
  };

  virtual ~GradientCommunicator() = default;
  GradientCommunicator(const GradientCommunicator&) = delete;
  GradientCommunicator& operator=(const GradientCommunicator&) = delete;

  /// Whether a step has Level::kStep, too.
  virtual bool keeps_partial_sums() const = 0;
  /// In which order start() adds. Sums over the micro-steps of a step follow it: one after the
  /// other, or going on with the tree.
  virtual SumOrder order() const { return SumOrder::kRanks; }
  /// How many stages a reduction has: 1, or 2 where advance() has something to do.
  virtual int stages(Level level) const = 0;

  /// Local. Memory for what start() and advance() take, uninitialised: [numel].
  virtual at::Tensor allocate(int64_t numel, at::ScalarType dtype) = 0;

  /// Local. A backward begins, or another pass over all units that reduces what no_sync left.
  virtual void begin_micro_step() {}

  /// Collective. Combines `full` [numel], gradients of `unit`, of every rank by `op`, kAvg for a
  /// sum that is divided by `divisor` (0: the number of ranks) before the result is rounded. `part`
  /// is `full` itself or the slice of it that is this rank's at this level, or memory of that size.
  virtual std::shared_ptr<Work> start(Level level, const PlannedUnit& unit, const at::Tensor& full,
                                      const at::Tensor& part, ReduceOp op, double divisor) = 0;

  /// Collective over the ranks that complete a part. Puts their parts together in `whole`, of which
  /// `part` is a slice; null where `part` is all that this rank keeps. `after`: what start()
  /// returned, which goes on with this by itself; null if the caller has waited for it.
  virtual std::shared_ptr<Work> advance(Level level, const PlannedUnit& unit,
                                        const at::Tensor& part, const at::Tensor& whole,
                                        std::shared_ptr<Work> after) = 0;

  /// The bytes that the last start(), of `full`, has given to collectives.
  virtual int64_t sent_bytes(const at::Tensor& full) const {
    return static_cast<int64_t>(full.nbytes());
  }

  /// Memory it holds on this rank beside what it has allocated for others.
  virtual int64_t bytes() const { return 0; }

 protected:
  GradientCommunicator() = default;
};

}  // namespace tessera::internal
