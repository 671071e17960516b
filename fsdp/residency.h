#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/access/access_observer.h"
#include "tessera/core/errors.h"
#include "tessera/core/fork.h"
#include "tessera/core/layout/freeable_buffer.h"
#include "tessera/core/layout/parameter_table.h"
#include "tessera/core/layout/unit_plan.h"
#include "tessera/core/memory/memory_meter.h"
#include "tessera/core/sched/access_order.h"
#include "tessera/core/sched/lane.h"
#include "tessera/core/sched/slab_pool.h"
#include "tessera/core/sched/stream_join.h"
#include "tessera/core/sched/trace.h"
#include "tessera/core/step/rolling_hash.h"
#include "tessera/fsdp/gather_counts.h"
#include "tessera/fsdp/unit_source.h"

namespace tessera {

/// How units come and go.
struct ResidencySetting {
  int ranks_after_forward = 0;  ///< 1 keeps units whole until backward has ended; p frees them
  bool prefetch = false;
  bool free_eagerly = false;
  bool strict_slabs = false;
  bool poison_freed = false;
  std::function<bool()> is_inside_backward;
  SlabPool::Allocate allocate;    ///< memory for whole units
  StreamJoin* streams = nullptr;  ///< on which operators use units; null on a CPU
};

/// Decides which units are whole: what GatheredUnits does behind its mutex. Note [Whole while
/// needed] in residency.cc, Note [Old values] in residency_unit.cc. Operators of other threads may
/// outlive close(), so their observers share it.
class Residency {
 public:
  /// One unit and what it is going through.
  class Unit final : public AccessTarget {
   public:
    Unit(Residency& residency, size_t index, FreeableBuffer& buffer,
         std::unique_ptr<UnitSource> source);

    Pin& pin(Use use) noexcept override;

    bool is_whole() const { return buffer_.has_memory(); }

   private:
    friend class Residency;

    /// The operators that use one memory of the unit.
    struct Readers final : Pin {
      explicit Readers(Unit& unit) : unit(unit) {}
      void unpin(Use use) noexcept override;

      Unit& unit;
      std::atomic<int64_t> pins{0};
      bool is_temporary = false;  // the memory was made for a hold
      at::Tensor kept;            // the memory, once other memory has taken its place
    };
    /// The operators that were refused to write.
    struct Refused final : Pin {
      explicit Refused(Unit& unit) : unit(unit) {}
      void unpin(Use use) noexcept override;

      Unit& unit;
      int64_t pins = 0;
    };

    Pin& refuse();
    bool is_fresh() const { return is_whole() && !is_stale_; }
    void replace_readers();

    Residency& residency_;
    const size_t index_;
    FreeableBuffer& buffer_;
    std::unique_ptr<UnitSource> source_;  // null: own_memory_ always holds the values
    at::Tensor own_memory_;  // of root, kept and shared units; undefined: slabs are used
    std::vector<std::unique_ptr<Readers>> all_readers_;  // those that nothing needs are used again
    std::atomic<Readers*> readers_{nullptr};             // of the present memory
    Refused refused_{*this};
    std::atomic<bool> is_ready_{false};  // a read has nothing to do but count
    std::atomic<bool> has_old_{false};   // the last reader of a memory has to look for more
    bool is_stale_ = false;              // whole, but of values that have changed
    int64_t holds_ = 0;
    std::string original_error_;  // of its buffer, while that tells of a failure instead
    at::Tensor fetched_;          // what a prefetch under way fills
    std::shared_ptr<Work> fetch_;
  };

  /// References must outlive it. Units are added before the first use.
  Residency(const UnitPlan& plan, const ParameterTable& table, ResidencySetting setting,
            MemoryMeter& meter, Trace* trace);
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  /// Adds the next unit of the plan. kOwn: it does not use slabs.
  enum class Memory : uint8_t { kSlab, kOwn };
  Unit& add(FreeableBuffer& buffer, std::unique_ptr<UnitSource> source, Memory memory);
  /// Adds the next unit of the plan, whose values are always in `whole`: being whole is a matter of
  /// leave only.
  Unit& add(FreeableBuffer& buffer, at::Tensor whole);
  /// Makes the slabs that the memory formula counts. After the last add().
  void fill_slabs();

  // What follows is called with `mutex` held.

  /// Frees every idle unit, waits for prefetches and drops them.
  void free_all();
  /// What is whole or fetched has old values from now on.
  void values_changed();
  void hold(size_t unit, bool writable);
  void release(size_t unit, bool writable);
  /// The engine is gone; holds and operators may not be, and what they read stays alive. Nothing of
  /// the engine may be used any more.
  void close();

  /// Whether this process is the rank, and no child of it, where `mutex` may be held by a thread
  /// that is not there.
  bool is_own_process() const { return origin_.is_here(); }

  size_t size() const { return units_.size(); }
  bool is_closed() const { return is_closed_; }
  const std::optional<CommError>& failure() const { return failure_; }
  GatherCounts counts() const;
  int64_t history() const { return gathers_.value(); }

  mutable std::mutex mutex;

 private:
  void use(Unit& unit);
  void enter(Unit& unit);
  void make_whole(Unit& unit);
  void fill(const Unit& unit, const at::Tensor& memory);
  void fill_and_attach(Unit& unit, at::Tensor memory, bool is_temporary,
                       const std::shared_ptr<Work>& fetch);
  std::shared_ptr<Work> start_together(const Unit& unit, const at::Tensor& memory);
  static bool can_free(Unit& unit);
  enum class After : uint8_t { kUse, kFence };
  void free(Unit& unit, After after);
  void free_idle_slabs(const Unit& but);
  void end_use(Unit& unit);
  void mark_stale(Unit& unit);
  void set_aside(Unit& unit, at::Tensor memory);
  void drop_old(Unit& unit);
  void prefetch(Unit& unit);
  void drop_prefetches(const Unit* but);
  at::Tensor take_memory(Unit& unit);
  at::Tensor take_own_memory(Unit& unit);
  at::Tensor take_temporary(const Unit& unit);
  void give_memory(Unit& unit, const at::Tensor& memory, bool is_temporary);
  bool stop_counting(const Unit& unit, const at::Tensor& memory, bool is_temporary);
  UnitSource::From source_now() const;
  AccessOrder::Phase phase() const;
  void remember(Unit& unit, const std::exception& error);
  std::string write_error(const Unit& unit) const;
  MemoryClass own_class(const Unit& unit) const;

  const Origin origin_;
  const UnitPlan& plan_;
  const ParameterTable& table_;
  const ResidencySetting setting_;
  MemoryMeter& meter_;
  Trace* const trace_;
  std::vector<std::unique_ptr<Unit>> units_;
  SlabPool pool_;
  int64_t slabs_planned_ = 0;
  AccessOrder order_;
  Unit* last_ = nullptr;  // of those in slabs
  int64_t writable_holds_ = 0;
  std::optional<CommError> failure_;
  GatherCounts counts_;
  RollingHash gathers_;                       // collective ones
  std::atomic<int64_t> prefetched_bytes_{0};  // by the lane
  bool is_closed_ = false;
  Lane lane_;  // last: its thread uses the rest
};

}  // namespace tessera
