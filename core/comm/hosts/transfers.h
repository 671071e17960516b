#pragma once

#include <vector>

#include "tessera/collective.h"
#include "tessera/core/comm/hosts/levels.h"
#include "tessera/core/comm/hosts/steps.h"

namespace tessera::internal::hosts {

/// What the steps of a collective work with, once the ranks' calls were found equal.
struct StepContext {
  const Levels& levels;
  Collective call;
  std::vector<int> slices;  ///< that each rank asks for
  /// Whether all earlier collectives are over, as Levels::last needs it.
  Steps::Condition is_first;
};

/// The steps of a collective.
///
/// Note [Traffic between hosts]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
/// Of H hosts of L ranks and a tensor of n bytes. all_reduce: the ranks of a host sum it inside,
/// each 1/L of it; each reduces its part with its column and shares the result inside: a host sends
/// 2 n (H-1)/H, once and not once per rank. reduce_scatter of n: a host sends n (H-1)/H. all_gather
/// into n: every part goes to every other host once, so a host sends n (H-1)/H. broadcast: n
/// (H-1) from the root's host, or less where MPI passes parts on. What has at most kSmallBytes is
/// reduced by every column as a whole, which saves a stage and travels in MPI's envelopes. gather,
/// scatter and all_to_all move every byte once as they are.
///
/// Note [Sums of two levels]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~
/// Each element is summed inside each host, in the order of its ranks, and then over hosts, in
/// theirs, wherever it is cut, so reduce_scatter has the bits of all_reduce. kAvg divides once, at
/// the end. Of bf16 and fp16 each level rounds once, and kAvg divides inside, so that no partial
/// sum overflows that the result would not. In SumOrder::kBinaryTree both levels are trees.
Steps steps_of(StepContext context);

}  // namespace tessera::internal::hosts
