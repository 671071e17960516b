#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/layout/flat_parameters.h"
#include "tessera/core/layout/slice_map.h"
#include "tessera/fsdp/shard_uploads.h"
#include "tessera/memory_meter.h"
#include "tessera/options.h"
#include "tessera/parameter_table.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// The masters, which the optimizer updates: this rank's optimizer slice of every trainable unit,
/// in the masters' dtype. Either a view of the parameters' shard, or a copy (has_master_copy()) if
/// the dtypes differ or the host updates a device's parameters. Under Options::offload the copy is
/// in pinned host memory.
class MasterValues {
 public:
  /// Copies masters out of the user's parameters in `table`, so construct it before FlatParameters
  /// converts the parameters. Masters lie on `device`, where the parameters are, or on the host if
  /// `offload` says so. Under Values::kLater nothing is copied and masters are zero. References
  /// must outlive it.
  MasterValues(const ParameterTable& table, const UnitPlan& plan, const SliceMap& slices,
               at::Device device, MemoryMeter& meter, Offload offload = Offload::kNone,
               Values brought = Values::kOfParameters);
  ~MasterValues();
  MasterValues(const MasterValues&) = delete;
  MasterValues& operator=(const MasterValues&) = delete;

  /// For each unit without a copy, uses a view of the parameters' shard as its masters.
  void adopt(const FlatParameters& flat);

  /// Returns the masters of each trainable unit: [unit numel / o].
  const std::vector<at::Tensor>& values() const { return values_; }

  /// Returns the memory to which new masters of `unit` must also be written: this rank's optimizer
  /// slice of the parameters' shard. Undefined if the masters are a view of that shard.
  at::Tensor target(size_t unit, const FlatParameters& flat) const {
    return has_copy(unit) ? part_of(unit, flat) : at::Tensor();
  }

  /// Rounds the masters of `unit` into its parameters' shard; does nothing if they are a view of
  /// it. If the shard lies on a device and the masters on the host, the copy is only queued; see
  /// join().
  void store(size_t unit, const FlatParameters& flat);
  /// Rounds `values` instead of the masters into the shard, so that the parameters show `values`
  /// until the next store(). `values` has the masters' dtype, size and device. Requires has_copy().
  void show(size_t unit, const at::Tensor& values, const FlatParameters& flat);
  /// Returns true if the masters of `unit` are a copy rather than its parameters' shard itself.
  bool has_copy(size_t unit) const { return has_master_copy(plan_[unit].precision, offload_); }
  /// Makes the current stream wait for what store() has queued.
  void join();
  /// Blocks until the copies that store() has queued are done. Call it before writing values()
  /// again.
  void await();
  /// Takes the masters of `unit` from its parameters' shard, after the parameters were written.
  void load(size_t unit, const FlatParameters& flat);
  /// Calls load() for every unit whose masters have the parameters' dtype. Masters of another dtype
  /// keep their values, because a loaded state has separate entries for them.
  void load_copies(const FlatParameters& flat);

 private:
  at::Tensor part_of(size_t unit, const FlatParameters& flat) const;

  const UnitPlan& plan_;
  const SliceMap& slices_;
  MemoryMeter& meter_;
  const Offload offload_;
  const MemoryClass class_;
  std::vector<at::Tensor> values_;
  std::unique_ptr<ShardUploads> uploads_;  // null where no copy goes from the host to a device
  int64_t bytes_ = 0;
};

}  // namespace tessera::internal
