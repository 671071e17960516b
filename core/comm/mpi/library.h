#pragma once

#include <absl/status/statusor.h>

#include "tessera/mpi_calls.h"

namespace tessera::internal::mpi {

using tessera::mpi::Calls;

/// Local. Returns how MPI is called. Opens an MPI, with its symbols visible to the whole process as
/// its own parts expect, and Tessera's module for its ABI; neither is ever closed. Which MPI:
/// - the one that the program has loaded already;
/// - TESSERA_MPI: "openmpi", "mpich" (or any MPI of its ABI: Intel MPI, MVAPICH), or the path of a
///   libmpi;
/// - that of the launcher that says who this process is (Note [Launchers]);
/// - by other variables of launchers: OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE or PMIX_RANK for
///   Open MPI; PMI_RANK, PMI_FD or MV2_COMM_WORLD_RANK for MPICH;
/// - whichever is installed, Open MPI first.
/// The error lists what was looked for, where, why that failed, and what to do.
absl::StatusOr<const Calls*> load_library();

}  // namespace tessera::internal::mpi
