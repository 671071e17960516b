#pragma once

#include <chrono>

#include "tessera/mpi_calls.h"

namespace tessera::internal::mpi {

/// Has this process use that MPI from the progress thread. Unless the application has initialised
/// it, initialises it, if it `may`, and finalises it at the end of the process. Throws c10::Error
/// if MPI has been finalised, is not initialised and may not be, or is or becomes initialised at a
/// lower level than MPI_THREAD_SERIALIZED; CommError if that thread does not come to it, or
/// MPI_Init_thread, where ranks are missing, does not return within the time-out.
void initialize(const tessera::mpi::Calls& calls, std::chrono::milliseconds timeout,
                bool may_initialize);

}  // namespace tessera::internal::mpi
