#pragma once

#include <memory>
#include <string>

#include "tessera/core/comm/group/group.h"
#include "tessera/environment.h"
#include "tessera/process_group_options.h"

namespace tessera::internal {

/// Collective over the ranks of a job that mpirun or srun has started: its world on the CPUs of any
/// number of hosts, which communicate by MPI. Throws c10::Error, on every rank, where there is no
/// MPI, or where MPI's ranks are not those that the environment names.
std::shared_ptr<Group> make_mpi_world(ProcessGroupOptions options, const Environment& environment);

/// Local. What messages call this rank's host.
std::string host_name(const Environment& environment);

}  // namespace tessera::internal
