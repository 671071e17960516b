#pragma once

#include <cstdint>

#include "tessera/mpi_calls.h"

namespace tessera::internal::testing {

/// MPI inside one process, whose ranks are threads: point-to-point messages in MPI's order. A
/// message of more than 4 KiB is read from the sender's memory only when it is received. A request
/// is reported as complete after a random number of tests. One thread may call at a time, as at
/// MPI_THREAD_SERIALIZED; otherwise the process is aborted.
const tessera::mpi::Calls& fake_mpi();

/// A communicator of `size` new ranks, as seen by rank `rank`. Calls with equal `world` give the
/// same communicator.
tessera::mpi::Handle fake_communicator(int world, int size, int rank);

/// Bytes sent so far with a tag other than 0: by all ranks, and by this rank number.
int64_t fake_data_bytes();
int64_t fake_data_bytes_of(int rank);

/// Returns how many of these bytes were sent and not yet received at one time, at most, since the
/// last call of this function.
int64_t take_fake_most_bytes_under_way();

/// Sets the result of level().
void set_fake_level(tessera::mpi::Calls::Level level);

/// The next send of this rank number fails with an error that says "broken wire".
void break_next_send(int rank);

/// From now on sends to this rank number fail in this way, as if its process were gone; -1: none.
void break_sends_to(int rank);

/// The next data that this rank number sends arrives, but its send never completes.
void never_end_next_data_of(int rank);

/// From now on everything that this rank number sends is lost, as if it were stopped; -1: nothing.
void lose_sends_of(int rank);

}  // namespace tessera::internal::testing
