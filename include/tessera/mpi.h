#pragma once

// Only for programs that use MPI themselves: this header needs an mpi.h when the program is
// compiled, and the MPI library when it is linked. Other programs do not need it, because
// init_process_group() opens MPI at run time.
#include <mpi.h>

#include <chrono>
#include <memory>

#include <c10/util/Exception.h>

#include "tessera/mpi_functions.h"
#include "tessera/mpi_group.h"
#include "tessera/process_group.h"

namespace tessera::mpi {

/// Collective over the ranks of `comm`, an intracommunicator; blocks until all have called it, at
/// most `timeout`. Returns a group of those ranks, numbered as in `comm`, which is duplicated and
/// may be freed. Neither initialises nor finalises MPI. The application must have initialised it
/// with MPI_Init_thread at MPI_THREAD_SERIALIZED or above, because a thread of the group makes MPI
/// calls. At SERIALIZED there are two periods in which the application must make no MPI call: while
/// this call, or a call on the group, is in flight on this rank (a message is in flight until it is
/// received), and from the destruction of the group to the end of leave(). At MULTIPLE it may make
/// MPI calls at any time. Call leave() before MPI_Finalize: MPICH needs it; in Open MPI,
/// MPI_Finalize itself does the same. After leave(), calls on a group that still exists throw
/// CommError. Throws c10::Error for MPI_COMM_NULL, an intercommunicator, a time-out that is not
/// positive, and if MPI is not initialised, has been finalised, or was initialised at a lower level
/// than MPI_THREAD_SERIALIZED; CommError if some ranks do not make the call. The error cannot name
/// them, because nothing is sent on `comm` itself. The job must then end, because a duplication of
/// `comm` that some ranks have begun cannot be undone.
inline std::shared_ptr<ProcessGroup> process_group(
    MPI_Comm comm, std::chrono::milliseconds timeout = std::chrono::minutes(10)) {
  TORCH_CHECK(comm != MPI_COMM_NULL,
              "[mpi] communicator: got MPI_COMM_NULL, expected one that this rank belongs to; make "
              "the group on its ranks only");
  // Non-zero if `comm` is an intercommunicator. MPI can be asked only while it is initialised;
  // otherwise process_group() throws below.
  int is_inter = 0;
  const bool can_ask = calls().level() > Calls::kNone;
  TORCH_CHECK(!can_ask || (MPI_Comm_test_inter(comm, &is_inter) == MPI_SUCCESS && is_inter == 0),
              "[mpi] communicator: got an intercommunicator, expected an intracommunicator; make "
              "one of both groups with MPI_Intercomm_merge");
  return process_group(calls(), functions::handle(comm), timeout);
}

}  // namespace tessera::mpi
