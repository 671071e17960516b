#include "tessera/zero/partition.h"

#include <utility>

namespace tessera {

std::vector<OptimizerShard> optimizer_shards(const UnitPlan& plan,
                                             const std::vector<at::Tensor>& values,
                                             const std::vector<Range>& kept) {
  std::vector<OptimizerShard> shards;
  for (size_t unit = 0; unit < plan.size(); ++unit) {
    const Range range = kept[unit];
    std::vector<Segment> segments = plan[unit].layout.segments(range);
    for (Segment& segment : segments) {
      segment.parameter = plan[unit].parameters[segment.parameter];
      segment.buffer_offset -= range.begin;
    }
    shards.push_back({values[unit].narrow(0, range.begin, range.numel), std::move(segments)});
  }
  return shards;
}

}  // namespace tessera
