#pragma once

#include <vector>

#include "tessera/collective.h"
#include "tessera/core/comm/hosts/collective_task.h"
#include "tessera/core/comm/hosts/host_subgroups.h"

namespace tessera::internal::hosts {

/// Inputs of a collective's task, after the ranks' calls were found equal.
struct CollectiveContext {
  const HostSubgroups& subgroups;
  Collective call;
  std::vector<int> slices;  ///< the slice that each rank asks for
  /// Returns true once all earlier collectives have finished. Only then may the task use
  /// HostSubgroups::last.
  CollectiveTask::Condition is_first;
};

/// Returns the task that carries out a collective.
///
/// Note [Traffic between hosts]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
/// Bytes that a host sends, for H hosts of L ranks and a tensor of n bytes. all_reduce: the ranks
/// of a host first sum the tensor among themselves, 1/L of it each. Each rank then all-reduces its
/// part with its column, and shares the result inside. So a host sends 2 n (H-1)/H, however many
/// ranks it has. reduce_scatter of an input of n bytes: n (H-1)/H. all_gather into an output of n
/// bytes: every part goes to every other host once, so a host sends n (H-1)/H. broadcast: the
/// root's host sends n (H-1), or less where MPI passes parts on. all_reduce of at most kSmallBytes:
/// every column reduces the whole tensor, which saves a stage and fits into MPI's envelopes.
/// gather, scatter and all_to_all move every byte once.
///
/// Note [Sums of two levels]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~
/// Each element is summed inside each host in the order of its ranks, and then over the hosts in
/// their order, wherever the tensor is split. So reduce_scatter gives the same bits as all_reduce.
/// kAvg divides once, between hosts. bf16 and fp16 are rounded once by each level; for them kAvg
/// divides inside the host, so that no partial sum overflows unless the result would. With
/// kBinaryTree both levels sum as trees.
CollectiveTask collective_task(CollectiveContext context);

}  // namespace tessera::internal::hosts
