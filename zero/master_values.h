#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/layout/flat_parameters.h"
#include "tessera/core/layout/parameter_table.h"
#include "tessera/core/layout/slice_map.h"
#include "tessera/core/layout/unit_plan.h"
#include "tessera/core/memory/memory_meter.h"

namespace tessera {

/// What the optimizer updates: this rank's optimizer slice of every trainable unit, in the masters'
/// dtype. A view of the parameters where the dtypes agree, else a copy that is more precise.
class MasterValues {
 public:
  /// Copies masters out of the parameters in `table` as the user made them, so it is made before
  /// FlatParameters converts them. They lie at `place`. References must outlive it.
  MasterValues(const ParameterTable& table, const UnitPlan& plan, const SliceMap& slices,
               at::Device place, MemoryMeter& meter);
  ~MasterValues();
  MasterValues(const MasterValues&) = delete;
  MasterValues& operator=(const MasterValues&) = delete;

  /// Lets the units without masters of their own use the parameters' shards.
  void adopt(const FlatParameters& flat);

  /// Per trainable unit: [unit numel / o].
  const std::vector<at::Tensor>& values() const { return values_; }

  /// Where the new values of the masters of `unit` go as well: this rank's optimizer slice in its
  /// parameters' shard; undefined where they are the same memory.
  at::Tensor target(size_t unit, const FlatParameters& flat) const {
    return plan_[unit].precision.has_masters() ? part_of(unit, flat) : at::Tensor();
  }

  /// Rounds the masters of `unit` into its parameters' shard; nothing where they are the same.
  void store(size_t unit, const FlatParameters& flat) const;
  /// Takes the masters of `unit` from its parameters' shard: the parameters were written.
  void load(size_t unit, const FlatParameters& flat);

 private:
  at::Tensor part_of(size_t unit, const FlatParameters& flat) const;

  const UnitPlan& plan_;
  const SliceMap& slices_;
  MemoryMeter& meter_;
  std::vector<at::Tensor> values_;
  int64_t bytes_ = 0;
};

}  // namespace tessera
