#include "tessera/core/layout/unit_memory.h"

#include <utility>

namespace tessera::internal {

AllocateUnit own_memory(const UnitPlan& plan, const SliceMap& slices, Residence residence,
                        std::function<at::Tensor(int64_t numel, at::ScalarType dtype)> allocate) {
  return [&plan, &slices, residence, allocate = std::move(allocate)](size_t index) {
    const FlatLayout& layout = plan[index].layout;
    const bool is_split = residence == Residence::kSplit;
    UnitMemory memory{
        .shard_range = is_split ? slices.parameters(layout) : Range{0, layout.numel()},
        .shard = {},
        .whole = {}};
    memory.shard = allocate(memory.shard_range.numel, layout.dtype());
    if (!is_split) memory.whole = memory.shard;
    return memory;
  };
}

}  // namespace tessera::internal
