#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "tessera/mpi_calls.h"

namespace tessera::internal::mpi {

/// Has this process use that MPI from the progress thread: initialises it, unless the application
/// has, and finalises it at the end of the process if it did. Throws c10::Error if MPI has been
/// finalised, or is or becomes initialised at a lower level than MPI_THREAD_SERIALIZED; CommError
/// if MPI_Init_thread does not return within the time-out, because ranks are missing; `absent` says
/// then which of them has called it or not, in words, or "".
void initialize(const tessera::mpi::Calls& calls, std::chrono::milliseconds timeout,
                const std::function<std::string()>& absent);

/// The same without initialising: throws c10::Error where nobody has.
void require_initialized(const tessera::mpi::Calls& calls, std::chrono::milliseconds timeout);

}  // namespace tessera::internal::mpi
