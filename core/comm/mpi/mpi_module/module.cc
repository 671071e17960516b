// Makes libtessera_mpi_<abi>.so: the MPI functions of one ABI, compiled with the mpi.h of that ABI.
// The module does not name an MPI library, so it works with any library of this ABI. That library
// must have been opened before, with global symbols.
#include "tessera/mpi_functions.h"

extern "C" const tessera::mpi::Calls* tessera_mpi_calls() { return &tessera::mpi::calls(); }
