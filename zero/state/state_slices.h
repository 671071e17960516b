#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/layout/flat_parameters.h"
#include "tessera/core/layout/slice_map.h"
#include "tessera/core/reduce/registered_hook.h"
#include "tessera/optim/slices/flat_average.h"
#include "tessera/optim/slices/flat_optimizer.h"
#include "tessera/parameter_table.h"
#include "tessera/partial_state.h"
#include "tessera/unit_plan.h"
#include "tessera/zero/parameters/master_values.h"
#include "tessera/zero/state/state_numbers.h"
#include "tessera/zero/state/state_table.h"

namespace tessera::internal {

/// Elements of a slot that are contiguous in this rank's memory.
struct StatePart {
  size_t slot;        ///< index in the StateTable
  Range range;        ///< which elements of the slot, counted in its memory order
  at::Tensor values;  ///< [range.numel], a view of the memory that keeps them
};

/// Finds the parts of a run's state that this rank keeps, by region: its shards, masters, optimizer
/// states and averages, but not a unit's gathered tensors. Buffers, and parameters that have no
/// place in the plan (frozen ones where parameters are not split), are whole on every rank. All
/// calls are local; the object holds no memory.
class StateSlices {
 public:
  /// References, `average` (null: none is kept) and `hook` must outlive it; `buffers` are the
  /// model's.
  StateSlices(const ParameterTable& table, const UnitPlan& plan, const SliceMap& slices,
              std::vector<NamedTensor> buffers, FlatOptimizer& optimizer,
              const MasterValues& masters, const FlatParameters& flat,
              const FlatAverage* average = nullptr, const RegisteredHook* hook = nullptr);

  const ParameterTable& parameters() const { return table_; }
  const std::vector<NamedTensor>& buffers() const { return buffers_; }
  FlatOptimizer& optimizer() const { return optimizer_; }

  /// Returns the table of the run's state. Throws c10::Error as StateTable's constructor does.
  StateTable table(const std::vector<StateNumber>& numbers) const;
  /// Marks the slots of `table` that a state may lack according to `partial`. Returns lines that
  /// must be equal on all ranks. Throws what partial.may_lack throws.
  std::vector<std::string> tolerate(StateTable& table, const PartialState& partial) const;

  // For regions that ranks keep in parts: StateRegion::has_parts().

  const FlatLayout& layout_of(const StateRegion& region) const {
    return plan_[region.index].layout;
  }
  /// kept() returns everything that this rank keeps of the region. in_atom() returns the part that
  /// this rank saves and no other rank does: what lies in its atom. A kWhole region has no atoms;
  /// the first of the ranks that own it saves it.
  std::vector<StatePart> kept(const StateRegion& region) const;
  std::vector<StatePart> in_atom(const StateRegion& region) const;

  /// Whether a loaded state has a slot of the table.
  enum class Presence : uint8_t {
    kThere,
    kMissing,
    kLeft,  ///< the run keeps its own value: StateSource::leaves()
  };
  /// Fills missing entries as PartialState says. Call it before `numbers` are written.
  void begin_missing(const StateTable& table, const std::vector<Presence>& presence,
                     std::vector<StateNumber>& numbers);

 private:
  /// Values of a part of a unit's buffer: one for each StateRegion::block_numel elements of
  /// `range`.
  struct Slice {
    at::Tensor values;
    Range range;
  };
  int owner(const StateRegion& region) const;
  std::vector<Slice> memory_of(const StateRegion& region) const;
  at::Tensor value_of(const StateRegion& region, const StatePart& part) const;
  at::Tensor master_of(const StateRegion& region, const StatePart& part) const;
  void begin_hook_state(const StateTable& table, const std::vector<Presence>& presence) const;
  std::vector<StatePart> parts_within(const StateRegion& region, Range bounds) const;

  const ParameterTable& table_;
  const UnitPlan& plan_;
  const SliceMap& slices_;
  const std::vector<NamedTensor> buffers_;
  FlatOptimizer& optimizer_;
  const MasterValues& masters_;
  const FlatParameters& flat_;
  const FlatAverage* const average_;
  const RegisteredHook* const hook_;
};

}  // namespace tessera::internal
