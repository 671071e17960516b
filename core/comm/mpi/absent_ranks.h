#pragma once

#include <string>

#include "tessera/environment.h"

namespace tessera::internal::mpi {

/// Local. Which of the ranks that are seen on this machine have not begun to use MPI, or are
/// stopped while they do: "rank 2 (pid 77, which sleeps) has not"; else how many have. "" where no
/// process of this job is seen, as without /proc. A process that uses MPI has a thread of that name
/// (Progress::kThreadName).
std::string absent_ranks(const Environment& environment);

}  // namespace tessera::internal::mpi
