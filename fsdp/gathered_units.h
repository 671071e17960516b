#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tessera/core/access/access_observer.h"
#include "tessera/core/layout/flat_parameters.h"
#include "tessera/core/layout/slice_map.h"
#include "tessera/core/numbers/rolling_hash.h"
#include "tessera/core/process/fork.h"
#include "tessera/core/sched/access_order.h"
#include "tessera/core/sched/lane.h"
#include "tessera/core/sched/stream_join.h"
#include "tessera/errors.h"
#include "tessera/fsdp/shard_uploads.h"
#include "tessera/fsdp/unsharded_memory.h"
#include "tessera/fsdp/window_source.h"
#include "tessera/gather_counts.h"
#include "tessera/memory_meter.h"
#include "tessera/parameter_table.h"
#include "tessera/process_group.h"
#include "tessera/trace.h"
#include "tessera/unit_plan.h"
#include "tessera/window.h"

namespace tessera::internal {

/// Makes the group of ranks that together have a whole copy of split parameters, to gather them
/// where ranks cannot read each other's memory. Its allocate() makes shards and unsharded-parameter
/// buffers, so that a backend that registers memory knows both. Collective over `group`.
std::shared_ptr<ProcessGroup> make_gathering_group(ProcessGroup& group, const SliceMap& slices);

/// Gathers the units of split parameters when operators use them and frees them afterwards. Local
/// between fences where ranks read each other's memory; elsewhere gathers are collectives
/// (CollectiveSource). Thread-safe, because operators of any thread call it. Note [Whole while
/// needed] in gathered_units.cc, Note [Old values] in gathered_unit.cc.
class GatheredUnits : public std::enable_shared_from_this<GatheredUnits> {
 public:
  /// When units are gathered and freed.
  struct Setting {
    int ranks_after_forward = 0;  ///< 1 keeps units whole until backward has ended; p frees them
    bool prefetch = false;
    bool free_eagerly = false;
    bool fixed_unsharded_buffers = false;
    bool poison_freed = false;
    std::function<bool()> is_inside_backward;
    StreamJoin* streams = nullptr;  ///< streams on which operators use units; null on a CPU
  };

  /// Objects that units are made of and read from. References must outlive the owner.
  struct Parts {
    ProcessGroup& group;
    /// make_gathering_group() where `group` has no windows and units are not shared, else null.
    std::shared_ptr<ProcessGroup> gathering;
    const UnitPlan& plan;
    const ParameterTable& table;
    const SliceMap& slices;
    FlatParameters& flat;  ///< split; its units have no memory now
    MemoryMeter& meter;
    Trace* trace;
  };

  /// Where the group has no windows, setting.ranks_after_forward must be 1 or all. The returned
  /// pointer is the only owner; when it is destroyed, all gathers and all use of `parts` end.
  /// Scopes and operators of other threads may outlive it; the memory that they read lives until
  /// they end. Collective.
  static std::shared_ptr<GatheredUnits> make(Parts parts, Setting setting);
  ~GatheredUnits();
  GatheredUnits(const GatheredUnits&) = delete;
  GatheredUnits& operator=(const GatheredUnits&) = delete;

  /// Frees every unit that nothing holds or uses, the root too, and waits for prefetches. Called at
  /// the end of backward, and before shards change.
  void free_all();

  /// Called when the shards of all ranks have new values (after a barrier where ranks read each
  /// other's memory). Everything gathered before becomes stale, even memory that other threads
  /// still read.
  void values_changed();

  /// Call before the host writes shards in host memory: blocks until no gather reads them.
  void await_copies();

  /// Keeps `units` whole in separate memory until the returned scope ends; local. The scope may
  /// outlive the owner.
  enum class HoldMode : uint8_t { kReadOnly, kWritable };
  std::shared_ptr<void> hold(const std::vector<size_t>& units, HoldMode mode);
  std::shared_ptr<void> hold_all(HoldMode mode);

  /// Returns the target that an operator pins while it uses `unit`. Lives as long as this object.
  AccessTarget& target(size_t unit) const;

  /// Returns the error of a failed gather. Operators that needed the unit have thrown the same
  /// error.
  std::optional<CommError> failure() const;

  /// With poison_freed, returns a parameter that was written while its unit was whole, other than
  /// by an operator (through a raw pointer). Reset by values_changed().
  std::optional<size_t> written() const;

  GatherCounts counts() const;

  /// A RollingHash of the collective gathers so far; 0 where gathers are no collectives.
  int64_t history() const;

 private:
  class Unit;

  GatheredUnits(Parts parts, Setting setting);
  void add(size_t index, const Parts& parts, WindowSource::SecondShards second);
  void watch(const FlatParameters& flat);

  // Callers of these functions hold the mutex.
  void use(Unit& unit);
  void enter(Unit& unit);
  void free_idle_buffers(const Unit& but);
  void drop_prefetches(const Unit* but);
  AccessOrder::Phase phase() const;
  WindowSource::From source_now() const;
  Lane& next_lane();

  void close();

  const Origin origin_;  // scopes may end in a child of fork()
  mutable std::mutex mutex_;
  const Setting setting_;
  const UnitPlan& plan_;
  const ParameterTable& table_;
  Trace* const trace_;
  std::shared_ptr<ProcessGroup> gathering_;  // null where ranks read each other's memory
  std::shared_ptr<ShardUploads> host_;       // null where shards lie with the units
  std::unique_ptr<Window> stamps_;           // stamps of second shards; null if there are none
  UnshardedMemory memory_;
  std::vector<std::unique_ptr<Unit>> units_;
  AccessOrder order_;
  Unit* last_ = nullptr;  // the unit in unsharded-parameter buffers that was used last
  int64_t writable_holds_ = 0;
  std::optional<size_t> written_;  // written()
  std::optional<CommError> failure_;
  GatherCounts counts_;
  RollingHash gathers_;                       // of collective gathers
  std::atomic<int64_t> prefetched_bytes_{0};  // read by the lanes
  bool is_closed_ = false;                    // the owner is gone
  std::unique_ptr<AccessObserver> observer_;
  size_t next_lane_ = 0;
  // One lane waits for a unit, the other for the next one. Declared last, because the lanes'
  // threads use the other members.
  std::array<Lane, 2> lanes_;
};

}  // namespace tessera::internal
