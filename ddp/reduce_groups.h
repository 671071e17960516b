#pragma once

#include <memory>

#include "tessera/core/comm/process_group.h"
#include "tessera/core/layout/slice_map.h"

namespace tessera {

/// The groups that gradients of one engine are reduced over. Note [Slice map] says who is in them;
/// a subgroup is null where it would hold one rank or everybody, or where the degrees do not ask
/// for it.
struct ReduceGroups {
  ProcessGroup* all;                          ///< the engine's group; outlives the others
  std::shared_ptr<ProcessGroup> replicas;     ///< ranks that share an optimizer slice (d differs)
  std::shared_ptr<ProcessGroup> within_sums;  ///< a and b differ: what each micro-step sums over
  std::shared_ptr<ProcessGroup> across_sums;  ///< c and d differ: what the end of a step adds
};

/// Collective over `group`; sends nothing but what making subgroups takes.
ReduceGroups make_reduce_groups(ProcessGroup& group, const SliceMap& slices);

}  // namespace tessera
