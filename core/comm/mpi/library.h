#pragma once

#include <string>

#include <absl/status/statusor.h>

#include "tessera/environment.h"
#include "tessera/mpi_calls.h"

namespace tessera::internal::mpi {

/// An MPI that is open in this process, and how it is called.
struct Library {
  std::string path;  ///< of the library, "" if the program brought it in another way
  std::string abi;   ///< "openmpi" or "mpich"
  const tessera::mpi::Calls* calls = nullptr;
};

/// Local. Opens an MPI, with its symbols visible to the whole process, as its own parts expect, and
/// Tessera's module for its ABI; neither is ever closed. Which one:
/// - the one that the program has loaded already;
/// - TESSERA_MPI: "openmpi", "mpich" (or any MPI of its ABI: Intel MPI, MVAPICH), or the path of a
///   libmpi;
/// - that of the launcher that says who this process is (Note [Launchers]);
/// - by other variables of launchers: OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE or PMIX_RANK for
///   Open MPI; PMI_RANK, PMI_FD or MV2_COMM_WORLD_RANK for MPICH;
/// - whichever is installed, Open MPI first.
/// The error lists what was looked for, where, why that failed, and what to do.
absl::StatusOr<Library> load_library(const EnvironmentLookup& lookup = process_environment);

}  // namespace tessera::internal::mpi
