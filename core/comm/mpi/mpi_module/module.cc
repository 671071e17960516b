// libtessera_mpi_<abi>.so: the MPI functions of one ABI, compiled with its mpi.h. The module is
// opened after an MPI library with global symbols. It does not name that library, so any library of
// this ABI will do.
#include "tessera/mpi_functions.h"

extern "C" const tessera::mpi::Calls* tessera_mpi_calls() { return &tessera::mpi::calls(); }
