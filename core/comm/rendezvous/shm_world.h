#pragma once

#include <memory>

#include "tessera/environment.h"
#include "tessera/process_group.h"
#include "tessera/process_group_options.h"

namespace tessera::internal {

/// Collective over the ranks of a job: its world on one host, in shared memory. With GPUs, which
/// ranks may share, it stages through that memory; if one rank lacks something for that, all throw
/// the same c10::Error, which names the ranks.
std::shared_ptr<ProcessGroup> make_shm_world(ProcessGroupOptions options,
                                             const Environment& environment);

}  // namespace tessera::internal
