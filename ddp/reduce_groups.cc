#include "tessera/ddp/reduce_groups.h"

namespace tessera {

using Axis = SliceMap::Axis;

ReduceGroups make_reduce_groups(ProcessGroup& group, const SliceMap& slices) {
  ReduceGroups groups{.all = &group, .replicas = {}, .within_sums = {}, .across_sums = {}};
  const int replicas = slices.extent(Axis::kReplicas);
  if (replicas > 1 && replicas < group.size()) {
    groups.replicas = split(group, slices.colors({Axis::kReplicas}), "reduce replicas");
  }
  if (keeps_partial_sums(slices.degrees())) {
    groups.within_sums =
        split(group, slices.colors({Axis::kParameters, Axis::kGradients}), "reduce within");
    groups.across_sums =
        split(group, slices.colors({Axis::kOptimizer, Axis::kReplicas}), "reduce across");
  }
  return groups;
}

}  // namespace tessera
