#pragma once

#include <memory>

#include "tessera/core/comm/group/group.h"
#include "tessera/core/comm/hosts/host_layout.h"

namespace tessera::internal::hosts {

/// Collective over `flat`, the group of all ranks. Makes the group in which all ranks communicate
/// in two levels: inside each host, and between hosts. `inside`: the group of this host's ranks,
/// which share memory; its ranks have the same order as in `flat`. `layout`: how the ranks are
/// placed; its is_two_level() must be true. Tensors of the new group lie on the CPU.
std::shared_ptr<ProcessGroup> make_group(const std::shared_ptr<internal::Group>& flat,
                                         const std::shared_ptr<internal::Group>& inside,
                                         HostLayout layout);

}  // namespace tessera::internal::hosts
