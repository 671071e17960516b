#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/core/access/access_observer.h"
#include "tessera/core/comm/process_group.h"
#include "tessera/core/comm/window.h"
#include "tessera/core/errors.h"
#include "tessera/core/layout/flat_parameters.h"
#include "tessera/core/layout/slice_map.h"
#include "tessera/core/layout/unit_plan.h"
#include "tessera/core/memory/memory_meter.h"
#include "tessera/core/sched/trace.h"
#include "tessera/fsdp/gather_counts.h"
#include "tessera/fsdp/host_shards.h"
#include "tessera/fsdp/residency.h"

namespace tessera {

/// The ranks that together have a whole copy of split parameters, to gather them where ranks cannot
/// read each other's memory. Shards come from its allocate(), as slabs do, so that a backend that
/// registers memory knows both sides of a gather. Collective over `group`.
std::shared_ptr<ProcessGroup> make_gathering_group(ProcessGroup& group, const SliceMap& slices);

/// Makes the units of split parameters whole when operators touch them and frees them afterwards:
/// the residency of a model's units, the sources they are read from and the observer that sees
/// operators. Local between fences where ranks
/// read each other's memory; elsewhere gathers are collectives (CollectiveSource).
class GatheredUnits {
 public:
  /// `gathering`: make_gathering_group() where `group` has no windows and units are not shared,
  /// else null. `flat` is split; its units have no memory now. Where `group` has no windows,
  /// setting.ranks_after_forward is 1 or all. References must outlive it. Collective.
  GatheredUnits(ProcessGroup& group, std::shared_ptr<ProcessGroup> gathering, const UnitPlan& plan,
                const ParameterTable& table, const SliceMap& slices, FlatParameters& flat,
                ResidencySetting setting, MemoryMeter& meter, Trace* trace);
  ~GatheredUnits();
  GatheredUnits(const GatheredUnits&) = delete;
  GatheredUnits& operator=(const GatheredUnits&) = delete;

  /// Frees every unit that nothing holds or uses, the root too, and waits for prefetches. At the
  /// end of backward, and before shards change.
  void free_all();

  /// The shards of all ranks have new values, behind a barrier where ranks read each other's
  /// memory: whatever was gathered before is old, also what operators of other threads still read.
  void values_changed();

  /// Before the host writes shards that lie in its memory: blocks until no gather reads them.
  void await_copies();

  /// Keeps `units` whole in memory of their own until the scope ends; local. The scope may outlive
  /// this object.
  enum class HoldMode : uint8_t { kReadOnly, kWritable };
  std::shared_ptr<void> hold(const std::vector<size_t>& units, HoldMode mode);
  std::shared_ptr<void> hold_all(HoldMode mode);

  /// What a gather failed with; the operators that needed it have thrown the same.
  std::optional<CommError> failure() const;

  GatherCounts counts() const;

  /// A RollingHash of the collective gathers so far; 0 where gathers are no collectives.
  int64_t history() const;

 private:
  std::shared_ptr<ProcessGroup> gathering_;  // null where ranks read each other's memory
  std::shared_ptr<HostShards> host_;         // null where shards lie with the units
  std::unique_ptr<Window> stamps_;           // of second shards; null if there are none
  std::shared_ptr<Residency> residency_;     // shared with open scopes
  std::unique_ptr<AccessObserver> observer_;
};

}  // namespace tessera
