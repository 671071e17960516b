#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/hosts/levels.h"
#include "tessera/core/comm/hosts/read_cache.h"
#include "tessera/core/comm/hosts/steps.h"

namespace tessera::internal::hosts {

/// What a group of several hosts has beside its links.
struct GroupSetting {
  HostLayout layout;
  Member::Patience of_messages;
  std::shared_ptr<ReadCache> cache;  ///< of all groups of this rank's host
  uint64_t id = 0;                   ///< equal on all ranks, different for each group

  /// Of the group or window that its call with this number makes.
  uint64_t id_of_made(int64_t sequence) const;
};

/// Ranks of several hosts: shared memory inside each, and between them what connects columns, the
/// ranks with one number on every host. A collective is calls of these links, one after the other
/// (transfers.h).
///
/// Note [Calls of two levels]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~~
/// If ranks' collectives differed, an error that compared the calls they are made of would name
/// sizes that nobody has asked for. So the ranks of a host exchange their calls first; if these are
/// equal, each exchanges its host's call, and which slices the host's ranks ask for, with its
/// column. Then every rank has seen all calls, and all find the same difference. If they differ
/// inside a host, its ranks fail the group, and the others, which wait for them, throw the same
/// cause. A barrier consists of this exchange only.
///
/// Calls inside a host come in one order on all its ranks: a collective is announced when the one
/// before has handed on what goes between hosts, and shares what has come there when all before it
/// are over.
std::unique_ptr<internal::Link> make_link(Links links, const std::string& group,
                                          GroupSetting setting);

// Calls that make something (window.cc, world_group.cc). References must outlive the steps.

Steps make_window(const Levels& levels, const GroupSetting& setting, Call& call);
Steps make_subgroup(const Levels& levels, const GroupSetting& setting, Call& call);

}  // namespace tessera::internal::hosts
