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

/// Before MPI_Finalize: blocks until all ranks of the groups made by process_group() have destroyed
/// them and called it, too, or MPI_Finalize. Groups that are left here throw CommError from then
/// on. Behind it Tessera makes no call of MPI until another group is made. MPI_Finalize does the
/// same, but must not begin while another thread is inside MPI: MPICH 4.0 at MPI_THREAD_MULTIPLE
/// then ends the process ("pthread_mutex_destroy: Device or resource busy"), and the thread that
/// leaves a destroyed group may be.
void leave();

}  // namespace tessera::mpi
