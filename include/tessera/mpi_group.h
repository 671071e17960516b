#pragma once

#include <chrono>
#include <memory>

#include "tessera/mpi_calls.h"
#include "tessera/process_group.h"

namespace tessera::mpi {

/// What process_group(MPI_Comm) of mpi.h calls: the same over the functions of some MPI. `calls`
/// must live as long as the process.
std::shared_ptr<ProcessGroup> process_group(const Calls& calls, Handle comm,
                                            std::chrono::milliseconds timeout);

}  // namespace tessera::mpi
