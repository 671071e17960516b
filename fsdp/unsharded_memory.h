#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/sched/buffer_pool.h"
#include "tessera/memory_meter.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// The memory in which units of split parameters lie while they are whole: unsharded-parameter
/// buffers of a pool, memory of one unit's own, temporary memory for scopes, or memory that ranks
/// share. Counts what it allocates. Local. Its user calls it under one lock.
class UnshardedMemory {
 public:
  struct Setting {
    bool fixed_unsharded_buffers = false;  ///< Options::fixed_unsharded_buffers
    bool poison_freed = false;             ///< Options::poison_freed
  };

  /// The references must stay valid until close(). `allocate` makes all memory except shared
  /// memory.
  UnshardedMemory(const UnitPlan& plan, BufferPool::Allocate allocate, Setting setting,
                  MemoryMeter& meter);

  /// Adds the plan's next unit: it will lie in unsharded-parameter buffers.
  void add_in_buffers();
  /// Adds the plan's next unit with memory of its own, which this call allocates.
  void add_in_own();
  /// Adds the plan's next unit: it lies in `whole`, which ranks share and which is not counted
  /// here.
  void add_shared(at::Tensor whole);
  /// Allocates as many unsharded-parameter buffers as the memory formula counts. Call it after all
  /// units are added.
  void fill_buffers();

  /// Returns true if `unit` has memory of its own or shared memory, false if it lies in buffers.
  bool has_own(size_t unit) const { return places_[unit].own.defined(); }
  /// Returns true if take() would allocate nothing.
  bool is_at_hand(size_t unit) const;

  /// Returns memory for all of `unit`, [unit numel], with undefined contents. Under
  /// fixed_unsharded_buffers throws c10::Error if the pool would have to add a buffer.
  at::Tensor take(size_t unit);
  /// Like take(), for a unit whose memory from the last take() is still read. So a unit with memory
  /// of its own gets new memory, which replaces the old memory as the unit's own.
  at::Tensor take_another(size_t unit);
  /// Like take(), for a scope: allocates new memory and uses no buffer.
  at::Tensor take_temporary(size_t unit);

  /// Gives back memory that take(), take_another() or take_temporary() returned for `unit`.
  /// `is_temporary`: it came from take_temporary(). The contents are lost.
  void give(size_t unit, const at::Tensor& memory, bool is_temporary);
  /// Called when `memory` is not needed any more. If it will not be used again, because it is
  /// temporary or because take_another() has replaced it as the unit's own, stops counting it and
  /// returns true; else returns false.
  bool forget(size_t unit, const at::Tensor& memory, bool is_temporary);

  /// Lets go of all memory and stops counting it; memory that others hold lives on. Afterwards
  /// nothing may be taken or given back.
  void close();

  /// Returns how many unsharded-parameter buffers have been allocated since fill_buffers().
  int64_t unsharded_buffers_added() const { return pool_.buffers() - buffers_planned_; }

 private:
  struct Place {
    // The unit's own or shared memory; undefined if it lies in unsharded-parameter buffers.
    at::Tensor own;
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
