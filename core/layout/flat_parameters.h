#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/access/access_observer.h"
#include "tessera/core/layout/freeable_buffer.h"
#include "tessera/core/layout/unit_memory.h"
#include "tessera/memory_meter.h"
#include "tessera/parameter_table.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// Whether the values of parameters are copied when the parameters move into flat buffers, or are
/// set later because the parameters have no readable memory.
enum class Values : uint8_t { kOfParameters, kLater };

/// Whether an observer may ever watch the parameters, or operators always find their values there.
enum class Observed : uint8_t { kNo, kYes };

/// The parameters of a plan in one flat buffer per unit, and this rank's shards of them. Detects
/// writes outside the engine. A unit is resident (always has memory) or split (has memory only
/// while some is attached).
class FlatParameters {
 public:
  /// Moves the parameters of `table` that have a place in `plan` into memory from `allocate`, and
  /// converts them to their unit's dtype. A parameter that must get a new storage may share its old
  /// one only with other parameters (Note [Aliases of parameters]). Whole units lie on `device`,
  /// like the parameters; shards of split units may lie elsewhere (Options::offload). Writes this
  /// rank's shards only: ranks that share whole units must run a barrier and call accept() before
  /// any of them reads. Under Values::kLater shards are zero. Under Observed::kYes parameters get
  /// the access key, by which watched() storages are observed; split parameters always do.
  /// References must outlive the object.
  FlatParameters(const ParameterTable& table, const UnitPlan& plan, Residence residence,
                 const AllocateUnit& allocate, at::Device device, MemoryMeter& meter,
                 Values values = Values::kOfParameters, Observed observed = Observed::kNo);
  /// Resident parameters keep their values in their buffers; split ones throw when read. Takes the
  /// access key off the parameters.
  ~FlatParameters();
  FlatParameters(const FlatParameters&) = delete;
  FlatParameters& operator=(const FlatParameters&) = delete;

  /// Returns the buffer of `unit`, [unit numel], with the storages of its parameters in the order
  /// of PlannedUnit::parameters.
  FreeableBuffer& full(size_t unit) { return full_[unit]; }
  const FreeableBuffer& full(size_t unit) const { return full_[unit]; }

  /// Returns what an AccessObserver needs to observe `unit` for `target`: the storages of its
  /// parameters.
  std::vector<AccessObserver::Watched> watched(size_t unit,
                                               const std::shared_ptr<AccessTarget>& target) const;

  /// The part of `unit` that this rank keeps: shard() returns its memory, including padding with
  /// zeros, and shard_range() returns its range in the unit.
  const at::Tensor& shard(size_t unit) const { return memory_[unit].shard; }
  Range shard_range(size_t unit) const { return memory_[unit].shard_range; }
  /// Returns the memory of all of `unit`, attached or not; undefined if that memory exists only
  /// while the unit is used.
  const at::Tensor& whole(size_t unit) const { return memory_[unit].whole; }

  bool is_split() const { return residence_ == Residence::kSplit; }

  /// The ways in which a parameter can violate the engine's assumptions.
  enum class Violation : uint8_t {
    kNone,
    kMoved,     ///< no longer lives in its unit: re-assigned, converted or resized
    kWritten,   ///< its version counter moved, or its first elements changed without that
    kUnfrozen,  ///< frozen in this engine, but requires grad now
  };

  /// Returns true if parameter `index` still lives in its unit. Local, a few nanoseconds.
  bool lives_here(size_t index) const;

  /// What inspect() has found: the first parameter that was changed, and how.
  struct Finding {
    Violation violation = Violation::kNone;
    size_t parameter = 0;
  };
  /// Returns the first parameter that was changed since accept(), and how. Local. On a CPU
  /// inspect() compares 64 elements of each resident parameter, because torch's SGD and others
  /// write through .data(), which has its own version counter. On a GPU inspect() does not notice
  /// such a write, because the comparison would wait for the device.
  Finding inspect() const;
  /// Like inspect(), but ignores writes to values: finds only problems that modify_parameters()
  /// cannot repair.
  Finding inspect_places() const;

  /// Accepts the current values: records the version counters of all parameters, and the first
  /// elements of each, except in units that may not be read now because they are being
  /// all-gathered.
  void accept();
  /// Records the first elements of each parameter of `unit`.
  void accept_values(size_t unit);

  /// Increments the version counter of parameter `index`, so that backward through earlier graphs
  /// fails instead of using the new values.
  void bump_version(size_t index);

 private:
  uint64_t sample(size_t index) const;
  Range range_of(size_t index) const;

  const ParameterTable& table_;
  const UnitPlan& plan_;
  const Residence residence_;
  MemoryMeter& meter_;
  MemoryClass class_ = MemoryClass::kParameters;  // class of the shards' memory
  std::vector<FreeableBuffer> full_;
  std::vector<UnitMemory> memory_;
  std::vector<uint8_t> is_keyed_;     // per table entry: carries the access key
  std::vector<uint8_t> has_unkeyed_;  // per table entry: its storage has holders without the key
  std::vector<int64_t> versions_;     // per table entry
  std::vector<uint64_t> samples_;     // per table entry: a hash of the first elements
};

/// Returns the error text: "<parameter> <what happened>; <remedy>".
std::string describe(FlatParameters::Violation violation, const std::string& parameter);

}  // namespace tessera::internal
