#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::internal {

/// In which order the units of a plan are reduced, the same on all ranks (Note [Agreed order] in
/// reducer.cc): the plan's at first, then once and for all the order in which rank 0 had the
/// gradients of whole units in its first backward. A model whose layers are used in another order
/// than they are registered in would otherwise keep complete gradients waiting for those that the
/// plan has before them. Source: PyTorch DDP, arXiv 2006.15704, section 3.2.3 and 6.2.1.
class LaunchOrder {
 public:
  /// `is_learned`: false keeps the plan's order.
  LaunchOrder(size_t units, bool is_learned);

  /// All units are to be launched again.
  void begin_micro_step();
  bool has_next() const { return launched_ < order_.size(); }
  size_t next() const { return order_[launched_]; }
  /// The next one is launched.
  size_t take() { return order_[launched_++]; }

  /// This rank has all gradients of `unit` in this micro-step.
  void completed(size_t unit);
  /// Per unit its place among those completed, from 1; 0 if it was not. Empty once the order is
  /// settled.
  const std::vector<uint32_t>& positions() const { return positions_; }
  /// Takes the order of `positions`, equal on all ranks, unless it has one or nothing was completed
  /// (a reduction of what no_sync() left, a rank without a batch); units that were not completed
  /// come last, in the plan's order.
  void settle(const std::vector<uint32_t>& positions);

 private:
  std::vector<size_t> order_;
  size_t launched_ = 0;
  uint32_t completed_ = 0;
  std::vector<uint32_t> positions_;
};

}  // namespace tessera::internal
