#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::internal {

/// The order in which the units of a plan are reduced, the same on all ranks (Note [Agreed order]
/// in reducer.cc). It is the plan's order at first. Once rank 0 has made its first backward, it is,
/// for good, the order in which rank 0 completed units in that backward. If the plan's order were
/// kept, and a model used its layers in another order than it registers them, complete gradients
/// would wait for units that come earlier in the plan. Source: PyTorch DDP, arXiv 2006.15704,
/// section 3.2.3 and 6.2.1.
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
  /// Settles the order: adopts the order in `positions`, which is what positions() returns on rank
  /// 0. Does nothing if the order is settled already, or if rank 0 completed no unit (because it
  /// had no batch, or because the micro-step only reduces what no_sync() left). Units that were not
  /// completed come last, in the plan's order.
  void settle(const std::vector<uint32_t>& positions);

 private:
  std::vector<size_t> order_;
  size_t launched_ = 0;
  uint32_t completed_ = 0;
  std::vector<uint32_t> positions_;
};

}  // namespace tessera::internal
