#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "tessera/core/layout/slice_map.h"
#include "tessera/flat_layout.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// Whether the parameters of units are readable at all times, or only while they are in use.
enum class Residence : uint8_t { kResident, kSplit };

/// The memory of one unit's parameters on this rank.
struct UnitMemory {
  Range shard_range;  ///< the part that this rank keeps
  at::Tensor shard;   ///< the memory of that part, [its numel], with the authoritative values
  at::Tensor whole;  ///< [unit numel], shows the shards of all ranks; undefined if whole units have
                     ///< memory only while they are used
};

/// Makes the memory of unit `index` of a plan. Called once for each unit, in order.
using AllocateUnit = std::function<UnitMemory(size_t index)>;

/// Allocates memory for this rank alone with `allocate`: the whole of each resident unit, and this
/// rank's parameter slice of each split one. `plan` and `slices` must outlive the result.
AllocateUnit own_memory(const UnitPlan& plan, const SliceMap& slices, Residence residence,
                        std::function<at::Tensor(int64_t numel, at::ScalarType dtype)> allocate);

}  // namespace tessera::internal
