#pragma once

#include <memory>

#include "tessera/core/comm/group/group.h"
#include "tessera/core/comm/hosts/host_layout.h"

namespace tessera::internal::hosts {

/// Collective over `flat`, the world of all ranks, placed as `layout` says, with two levels.
/// `inside`: the world of this host's ranks, in their order, which share memory. Tensors lie on the
/// CPU.
std::shared_ptr<ProcessGroup> make_group(const std::shared_ptr<internal::Group>& flat,
                                         const std::shared_ptr<internal::Group>& inside,
                                         HostLayout layout);

}  // namespace tessera::internal::hosts
