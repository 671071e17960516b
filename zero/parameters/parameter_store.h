#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/core/layout/flat_parameters.h"
#include "tessera/core/layout/slice_map.h"
#include "tessera/core/options/resolved_options.h"
#include "tessera/errors.h"
#include "tessera/fsdp/gathered_units.h"
#include "tessera/memory_meter.h"
#include "tessera/parameter_table.h"
#include "tessera/process_group.h"
#include "tessera/trace.h"
#include "tessera/unit_plan.h"
#include "tessera/zero/parameters/master_values.h"
#include "tessera/zero/parameters/parameter_all_gather.h"
#include "tessera/zero/parameters/shared_parameters.h"

namespace tessera::internal {

/// Owns an engine's parameters: masters, flat buffers, and the objects that gather or share them.
/// Values flow one way: masters -> shard -> full.
class ParameterStore {
 public:
  /// Moves the parameters, which are equal on all ranks already, to where `options` say. Under
  /// Values::kLater call announce() when the shards are filled. `streams`: the streams on which
  /// operators use units; null on a CPU. References and `streams` must outlive it. Collective.
  ParameterStore(ProcessGroup& group, const ParameterTable& table, const UnitPlan& plan,
                 const SliceMap& slices, const ResolvedOptions& options,
                 std::function<bool()> is_inside_backward, StreamJoin* streams, MemoryMeter& meter,
                 Trace* trace, Values brought = Values::kOfParameters);

  /// Returns the masters that the optimizer updates, per trainable unit.
  MasterValues& masters() { return masters_; }
  FlatParameters& flat() { return flat_; }
  const FlatParameters& flat() const { return flat_; }
  /// Returns true if ranks of a host share one copy of the parameters: Note [Shared parameters].
  bool is_shared() const { return shared_ != nullptr; }

  /// Like FlatParameters::inspect(), but finds every write to shared parameters and, with
  /// poison_freed, every write to gathered units. Other writes may be missed, as by
  /// FlatParameters::inspect(). Local.
  FlatParameters::Finding inspect() const;

  /// Returns null where parameters are resident.
  const GatheredUnits* gathered() const { return gathered_.get(); }

  /// Waits for all-gathers of updates. Blocking. Throws the CommError of a failed all-gather.
  void finish();

  /// Returns the error of the first unit that could not be gathered; nothing if all could. Local.
  std::optional<CommError> failed_gather() const;

  /// Frees all whole units that are not in use. Local.
  void free_all();

  /// Call before the host writes masters or shards: blocks until no copy to the device reads them.
  void begin_writing();

  /// Makes the new values of this rank's slices the parameters of all ranks. used[i] must not be 0
  /// for any parameter i of the table that may have been updated, and the masters of its unit must
  /// have been stored. Collective; after the vote.
  void show_updates(const std::vector<uint8_t>& used);

  /// Call after shards and resident parameters were written other than by show_updates(): accepts
  /// the values and makes them visible to all ranks. Collective.
  void announce();

  /// Returns a scope in which all parameters are whole; null where parameters are resident. Local
  /// unless gathers are collectives.
  std::shared_ptr<void> hold_all(GatheredUnits::HoldMode mode);
  std::shared_ptr<void> hold(const std::vector<size_t>& units);

  /// Returns the whole buffer of each unit. Where parameters are split, call it inside hold_all().
  std::vector<at::Tensor> wholes() const;
  /// Takes shards and masters from the whole buffers, which the user or a peer has written. Call it
  /// inside hold_all().
  void take_wholes();

 private:
  bool reads_of_others() const;
  void make_visible();

  ProcessGroup& group_;
  const ParameterTable& table_;
  const UnitPlan& plan_;
  MasterValues masters_;
  std::unique_ptr<SharedParameters> shared_;  // null: each rank has its own memory
  std::shared_ptr<ProcessGroup> gathering_;   // null unless ranks gather units by collectives
  FlatParameters flat_;
  std::unique_ptr<ParameterAllGather> all_gather_;  // null where a barrier is enough
  std::shared_ptr<GatheredUnits> gathered_;         // null where parameters are resident
};

}  // namespace tessera::internal
