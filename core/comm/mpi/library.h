#pragma once

#include <absl/status/statusor.h>

#include "tessera/mpi_calls.h"

namespace tessera::internal::mpi {

using tessera::mpi::Calls;

/// Local. Returns the functions of an MPI library. Opens the library and Tessera's module for the
/// library's ABI; neither is ever closed. The library is opened with global symbols, because its
/// own plugins expect that. The error says which libraries were tried, where, why each failed, and
/// what to do. The library is the first of these that applies; if it cannot be opened, the later
/// ones are not tried:
/// - the MPI that the program has loaded already;
/// - TESSERA_MPI: "openmpi", "mpich" (or any MPI of its ABI: Intel MPI, MVAPICH), or the path of a
///   libmpi;
/// - the MPI of the launcher that says which rank this process is (Note [Launchers]);
/// - the MPI that other launcher variables name: OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE or
///   PMIX_RANK for Open MPI; PMI_RANK, PMI_FD or MV2_COMM_WORLD_RANK for MPICH;
/// - whichever is installed, Open MPI first.
absl::StatusOr<const Calls*> load_library();

}  // namespace tessera::internal::mpi
