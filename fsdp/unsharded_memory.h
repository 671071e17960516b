#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/sched/buffer_pool.h"
#include "tessera/memory_meter.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// The memory of units of split parameters while they are whole: pooled unsharded-parameter
/// buffers, a unit's own memory, temporary memory for scopes, or memory that ranks share. Counts
/// what it allocates. Local; used under one lock.
class UnshardedMemory {
 public:
  struct Setting {
    bool fixed_unsharded_buffers = false;  ///< Options::fixed_unsharded_buffers
    bool poison_freed = false;             ///< Options::poison_freed
  };

  /// References must outlive it until close().
  UnshardedMemory(const UnitPlan& plan, BufferPool::Allocate allocate, Setting setting,
                  MemoryMeter& meter);

  /// Adds the plan's next unit, to lie in unsharded-parameter buffers.
  void add_in_buffers();
  /// Adds the plan's next unit with memory of its own, which this call allocates.
  void add_in_own();
  /// Adds the plan's next unit in the shared memory `whole`, which is not counted here.
  void add_shared(at::Tensor whole);
  /// Makes the unsharded-parameter buffers of the memory formula. Call it after the last unit.
  void fill_buffers();

  /// Returns true if `unit` has its own or shared memory; others lie in buffers.
  bool has_own(size_t unit) const { return places_[unit].own.defined(); }
  /// Returns true if take() needs no new memory.
  bool is_at_hand(size_t unit) const;

  /// Returns memory for `unit` [unit numel], contents undefined. Throws c10::Error if the pool
  /// would have to grow under fixed_unsharded_buffers.
  at::Tensor take(size_t unit);
  /// Like take(), but while the memory taken before is still read: a unit with memory of its own
  /// gets new memory.
  at::Tensor take_another(size_t unit);
  /// Like take(), for a scope: allocates new memory and uses no buffer.
  at::Tensor take_temporary(size_t unit);

  /// Gives back memory of take(), take_another() or take_temporary(). Its contents are lost.
  void give(size_t unit, const at::Tensor& memory, bool is_temporary);
  /// If `memory` will not be reused (temporary memory, or own memory that was replaced), stops
  /// counting it and returns true.
  bool forget(size_t unit, const at::Tensor& memory, bool is_temporary);

  /// Frees all memory except what others hold; nothing may be taken or given afterwards.
  void close();

  /// Unsharded-parameter buffers made after fill_buffers().
  int64_t unsharded_buffers_added() const { return pool_.buffers() - buffers_planned_; }

 private:
  struct Place {
    at::Tensor own;  // undefined: unsharded-parameter buffers
    bool is_shared = false;
  };

  void make_own(size_t unit);
  MemoryClass own_class(size_t unit) const;

  const UnitPlan& plan_;
  const BufferPool::Allocate allocate_;
  const Setting setting_;
  MemoryMeter& meter_;
  std::vector<Place> places_;  // by unit
  BufferPool pool_;
  int64_t buffers_planned_ = 0;
};

}  // namespace tessera::internal
