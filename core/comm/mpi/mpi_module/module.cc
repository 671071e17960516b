// libtessera_mpi_<abi>.so: the functions of one MPI by its own mpi.h. It is opened after that MPI's
// library, which is global in the process and not named here, so that any library of this ABI will
// do.
#include "tessera/mpi_functions.h"

extern "C" const tessera::mpi::Calls* tessera_mpi_calls() { return &tessera::mpi::calls(); }
