#include "tessera/zero/step/partition.h"

#include <utility>

namespace tessera::internal {

std::vector<OptimizerShard> optimizer_shards(const UnitPlan& plan, const SliceMap& slices,
                                             const std::vector<at::Tensor>& values) {
  std::vector<OptimizerShard> shards;
  for (size_t unit = 0; unit < plan.trainable_size(); ++unit) {
    const Range range = slices.optimizer(plan[unit].layout);
    std::vector<Segment> segments = plan[unit].layout.segments(range);
    for (Segment& segment : segments) {
      segment.parameter = plan[unit].parameters[segment.parameter];
      segment.buffer_offset -= range.begin;
    }
    shards.push_back({values[unit], std::move(segments)});
  }
  return shards;
}

}  // namespace tessera::internal
