#pragma once

#include <chrono>
#include <memory>

#include "tessera/mpi_calls.h"
#include "tessera/process_group.h"

namespace tessera::mpi {

/// Implements process_group(MPI_Comm) of mpi.h over the functions of any MPI library. `calls` must
/// live as long as the process.
std::shared_ptr<ProcessGroup> process_group(const Calls& calls, Handle comm,
                                            std::chrono::milliseconds timeout);

/// Call it before MPI_Finalize. Blocks until all ranks of the groups made by process_group() have
/// destroyed them and called leave() or MPI_Finalize. From then on, groups that still exist throw
/// CommError, and Tessera makes no MPI call until another group is made. MPI_Finalize does the
/// same, but must not begin while another thread, such as the one that leaves a destroyed group, is
/// inside MPI: MPICH 4.0 at MPI_THREAD_MULTIPLE then ends the process ("pthread_mutex_destroy:
/// Device or resource busy").
void leave();

}  // namespace tessera::mpi
