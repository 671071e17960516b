#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/hosts/collective_task.h"
#include "tessera/core/comm/hosts/host_subgroups.h"
#include "tessera/core/comm/hosts/read_cache.h"

namespace tessera::internal::hosts {

/// Properties of a group of several hosts, besides its links.
struct GroupSetting {
  HostLayout layout;
  Member::Patience of_messages;
  std::shared_ptr<ReadCache> cache;  ///< shared by all groups of this rank's host
  uint64_t id = 0;                   ///< equal on all ranks, different for each group

  /// Returns the id of the group or window that call number `sequence` of this group makes.
  uint64_t id_of_made(int64_t sequence) const;
};

/// Makes the link of ranks of several hosts. It uses shared memory inside each host, and between
/// hosts the links of the columns. A column consists of the ranks that have the same local number,
/// one on every host. A collective is a sequence of calls of these links (transfers.h).
///
/// Note [Calls of two levels]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~~
/// If ranks called different collectives, a comparison of the calls on these links would name sizes
/// that the program never passed. So the ranks of a host first exchange their calls. If these are
/// equal, each rank exchanges two things with its column: its host's call, and the slices that the
/// host's ranks ask for. Then every rank knows all calls, and all find the same difference. If
/// calls differ inside a host, its ranks fail the group. The ranks of the other hosts, which wait
/// for these ranks, then throw the same cause. A barrier is only this exchange.
///
/// All ranks of a host must make their calls inside the host in the same order. So a collective is
/// announced only once the previous one has handed its data to the links between hosts. Data that a
/// collective got from other hosts is shared inside the host only once all earlier collectives have
/// finished.
std::unique_ptr<internal::Link> make_link(Links links, const std::string& group,
                                          GroupSetting setting);

// Tasks that carry out `call`, which makes a window (window.cc) or a subgroup (world_group.cc). The
// arguments must outlive the task.

CollectiveTask make_window(const HostSubgroups& subgroups, const GroupSetting& setting, Call& call);
CollectiveTask make_subgroup(const HostSubgroups& subgroups, const GroupSetting& setting,
                             Call& call);

}  // namespace tessera::internal::hosts
