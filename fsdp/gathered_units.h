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

/// Makes the group on which units are gathered where ranks cannot read each other's memory: the
/// ranks whose shards together are all parameters. Shards and unsharded-parameter buffers come from
/// this group's allocate(), so that a backend that registers memory knows both. Collective over
/// `group`.
std::shared_ptr<ProcessGroup> make_gathering_group(ProcessGroup& group, const SliceMap& slices);

/// Gathers the units of split parameters when operators use them and frees them afterwards. Where
/// ranks read each other's memory, all calls between two fences are local; where they cannot,
/// gathers are collectives (CollectiveSource). Thread-safe, because operators of any thread call
/// it. Note [Whole while needed] in gathered_units.cc, Note [Old values] in gathered_unit.cc.
class GatheredUnits : public std::enable_shared_from_this<GatheredUnits> {
 public:
  /// Settings of when units are gathered and freed.
  struct Setting {
    /// n = Options::reshard_after_forward. If n is 1, units stay whole until backward has ended. If
    /// n is the degree of parameters p (or 0), they are freed after forward. If n lies in between,
    /// they are freed, too, but each rank keeps 1/n of every unit (Note [Second shards]).
    int ranks_after_forward = 0;
    bool prefetch = false;
    bool free_eagerly = false;
    bool fixed_unsharded_buffers = false;
    bool poison_freed = false;
    std::function<bool()> is_inside_backward;
    StreamJoin* streams = nullptr;  ///< orders uses of units on different streams; null on a CPU
  };

  /// What make() needs. The references must stay valid until the pointer that make() returns is
  /// destroyed.
  struct Parts {
    ProcessGroup& group;
    /// The group from make_gathering_group(), if `group` has no windows and units do not lie in
    /// shared memory; else null.
    std::shared_ptr<ProcessGroup> gathering;
    const UnitPlan& plan;
    const ParameterTable& table;
    const SliceMap& slices;
    FlatParameters& flat;  ///< the split parameters; no unit may be whole when make() is called
    MemoryMeter& meter;
    Trace* trace;
  };

  /// Where the group has no windows, setting.ranks_after_forward must be 0, 1 or the degree of
  /// parameters. When the last copy of the returned pointer is destroyed, all gathers and all use
  /// of `parts` end. Scopes and operators of other threads may still exist then; the memory that
  /// they read lives until they end. Collective.
  static std::shared_ptr<GatheredUnits> make(Parts parts, Setting setting);
  ~GatheredUnits();
  GatheredUnits(const GatheredUnits&) = delete;
  GatheredUnits& operator=(const GatheredUnits&) = delete;

  /// Frees every unit that no scope holds and no operator uses, root units too. Waits for
  /// prefetches and drops them. Called at the end of backward, and before shards change.
  void free_all();

  /// Called when the shards of all ranks have new values; where ranks read each other's memory,
  /// only after a barrier. Operators that begin after this call do not read values that were
  /// gathered before it. Memory that operators of other threads still read lives until these
  /// operators end.
  void values_changed();

  /// Call before the host writes shards in host memory: blocks until no gather reads them.
  void await_copies();

  /// Keeps `units` whole while the returned scope lives. The scope may outlive the pointer from
  /// make(). If the call has to gather a unit, the unit gets new memory or its own, never an
  /// unsharded-parameter buffer. The call is local unless gathers are collectives.
  enum class HoldMode : uint8_t { kReadOnly, kWritable };
  std::shared_ptr<void> hold(const std::vector<size_t>& units, HoldMode mode);
  std::shared_ptr<void> hold_all(HoldMode mode);

  /// Returns the target that an operator pins while it uses `unit`. The target lives as long as
  /// this object.
  AccessTarget& target(size_t unit) const;

  /// Returns the error of a failed gather. Operators that needed the unit have thrown the same
  /// error.
  std::optional<CommError> failure() const;

  /// With poison_freed, returns a parameter that something other than an operator (code with a raw
  /// pointer) has written while the parameter's unit was whole; nothing if none was found since the
  /// last values_changed().
  std::optional<size_t> written() const;

  GatherCounts counts() const;

  /// Returns a RollingHash of the collective gathers so far; 0 where gathers are not collective.
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

  // The process of this object; a scope that ends in a child of fork() does nothing.
  const Origin origin_;
  mutable std::mutex mutex_;
  const Setting setting_;
  const UnitPlan& plan_;
  const ParameterTable& table_;
  Trace* const trace_;
  std::shared_ptr<ProcessGroup> gathering_;  // null where ranks read each other's memory
  std::shared_ptr<ShardUploads> host_;       // null if shards lie on the same device as units
  std::unique_ptr<Window> stamps_;           // stamps of second shards; null if there are none
  UnshardedMemory memory_;
  std::vector<std::unique_ptr<Unit>> units_;
  AccessOrder order_;
  Unit* last_ = nullptr;  // the unit in unsharded-parameter buffers that was used last
  int64_t writable_holds_ = 0;
  std::optional<size_t> written_;  // the result of written()
  std::optional<CommError> failure_;
  GatherCounts counts_;
  RollingHash gathers_;                       // the result of history()
  std::atomic<int64_t> prefetched_bytes_{0};  // bytes that the lanes have read from other ranks
  bool is_closed_ = false;                    // close() was called
  std::unique_ptr<AccessObserver> observer_;
  size_t next_lane_ = 0;
  // Prefetches run in these two lanes: while one reads a unit that an operator already waits for,
  // the other reads the next unit. They are declared last, so that their threads end first, because
  // these use the other members.
  std::array<Lane, 2> lanes_;
};

}  // namespace tessera::internal
