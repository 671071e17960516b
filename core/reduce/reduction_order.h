#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::internal {

/// The order in which the units of a plan are reduced, the same on all ranks (Note [Agreed order]
/// in reducer.cc). It is the plan's order at first, then, for good, the order in which rank 0
/// completed units in its first backward. With the plan's order, in a model that uses its layers in
/// another order than it registers them, complete gradients would wait for units that come earlier
/// in the plan. Source: PyTorch DDP, arXiv 2006.15704, section 3.2.3 and 6.2.1.
class ReductionOrder {
 public:
  /// If `is_learned` is false, keeps the plan's order.
  ReductionOrder(size_t units, bool is_learned);

  /// Starts a micro-step, in which all units are launched again.
  void begin_micro_step();
  bool has_next() const { return launched_ < order_.size(); }
  size_t next() const { return order_[launched_]; }
  /// Launches the next unit and returns it.
  size_t take() { return order_[launched_++]; }

  /// Notes that this rank has all gradients of `unit` in this micro-step.
  void completed(size_t unit);
  /// Returns each unit's place in the order of completion, from 1; 0 if it is not complete. Empty
  /// once the order is settled.
  const std::vector<uint32_t>& positions() const { return positions_; }
  /// Adopts the order of `positions`, equal on all ranks, unless the order is settled or no unit
  /// was completed (a reduction of what no_sync() left, a rank without a batch). Units that were
  /// not completed come last, in the plan's order.
  void settle(const std::vector<uint32_t>& positions);

 private:
  std::vector<size_t> order_;
  size_t launched_ = 0;
  uint32_t completed_ = 0;
  std::vector<uint32_t> positions_;
};

}  // namespace tessera::internal
