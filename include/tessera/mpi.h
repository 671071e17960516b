#pragma once

// For programs that use MPI themselves: compiled with their mpi.h, linked with their MPI. Programs
// that do not need none of this: init_process_group() opens MPI at run time.
#include <mpi.h>

#include <chrono>
#include <memory>

#include <c10/util/Exception.h>

#include "tessera/mpi_functions.h"
#include "tessera/mpi_group.h"
#include "tessera/process_group.h"

namespace tessera::mpi {

/// Collective over the ranks of `comm`, an intracommunicator; blocks until all have called it, at
/// most `timeout`. A group of those ranks, numbered as in `comm`, which is duplicated and may be
/// freed. MPI is neither initialised nor finalised by it. The application must have initialised it
/// with MPI_Init_thread at MPI_THREAD_SERIALIZED or above, because a thread of the group's makes
/// its MPI calls: at SERIALIZED the application makes none while a call on the group, its making
/// included, is in flight on this rank (a message until it is received), nor between destroying it
/// and leave(); at MULTIPLE it may at any time. Before MPI_Finalize leave() is called, which MPICH
/// needs; Open MPI's MPI_Finalize does it, too. Calls of a group that is left there throw
/// CommError. Throws c10::Error for MPI_COMM_NULL, an intercommunicator, a time-out that is not
/// positive, and where MPI is not initialised, has been finalised, or is at a lower level;
/// CommError where ranks do not come, which it cannot name, for nothing is sent on `comm` itself.
/// After that the job has to end: the others' part of the duplication cannot be taken back.
inline std::shared_ptr<ProcessGroup> process_group(
    MPI_Comm comm, std::chrono::milliseconds timeout = std::chrono::minutes(10)) {
  TORCH_CHECK(comm != MPI_COMM_NULL,
              "[mpi] communicator: got MPI_COMM_NULL, expected one that this rank belongs to; make "
              "the group on its ranks only");
  int is_inter = 0;  // what MPI says only while it is initialised; else the group's making says so
  const bool can_ask = calls().level() > Calls::kNone;
  TORCH_CHECK(!can_ask || (MPI_Comm_test_inter(comm, &is_inter) == MPI_SUCCESS && is_inter == 0),
              "[mpi] communicator: got an intercommunicator, expected an intracommunicator; make "
              "one of both groups with MPI_Intercomm_merge");
  return process_group(calls(), functions::handle(comm), timeout);
}

}  // namespace tessera::mpi
