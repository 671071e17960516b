#pragma once

#include <memory>

#include "tessera/environment.h"
#include "tessera/process_group.h"
#include "tessera/process_group_options.h"

namespace tessera::internal {

/// Collective over the ranks of a job that mpirun or srun has started: their world, which
/// communicates in shared memory inside each host and by MPI between hosts. Hosts are what
/// TESSERA_HOST or else the kernel tells apart. All on one host: a world in shared memory alone.
/// Where hosts have unequal numbers of ranks, or one each, or some host's ranks can share no
/// memory, which is a warning: by MPI alone. Throws as make_mpi_world() does.
std::shared_ptr<ProcessGroup> make_hosts_world(ProcessGroupOptions options,
                                               const Environment& environment);

}  // namespace tessera::internal
