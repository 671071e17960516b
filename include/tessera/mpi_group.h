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

/// Call it before MPI_Finalize. Ends the groups that process_group() has made: calls on a group
/// that still exists then throw CommError. Blocks until all other ranks of these groups have left
/// them, too: by destroying them, or by calling leave() or MPI_Finalize. After that Tessera makes
/// no MPI call until another group is made. MPI_Finalize does the same, but must not begin while
/// another thread is inside MPI, such as the thread that leaves a destroyed group: MPICH 4.0 at
/// MPI_THREAD_MULTIPLE then ends the process
/// ("pthread_mutex_destroy: Device or resource busy").
void leave();

}  // namespace tessera::mpi
