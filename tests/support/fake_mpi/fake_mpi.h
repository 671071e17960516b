#pragma once

#include <cstdint>

#include "tessera/mpi_calls.h"

namespace tessera::internal::testing {

/// MPI inside one process, whose ranks are threads: point-to-point messages with MPI's order, of
/// which larger ones are read only when they are received, and which are seen to be over after a
/// random number of looks. Called by one thread at a time, as MPI at MPI_THREAD_SERIALIZED; it
/// aborts the process otherwise.
const tessera::mpi::Calls& fake_mpi();

/// A communicator of `size` new ranks, as rank `rank` of it sees it: equal `world` numbers are one.
tessera::mpi::Handle fake_communicator(int world, int size, int rank);

/// Bytes that were sent with another tag than 0 so far, and those that this rank number has sent.
int64_t fake_data_bytes();
int64_t fake_data_bytes_of(int rank);

/// The most of those bytes that were sent and not received at any moment since the last call.
int64_t take_fake_most_bytes_under_way();

/// What level() answers.
void set_fake_level(tessera::mpi::Calls::Level level);

/// The next send of this rank number fails with an error that says "broken wire".
void break_next_send(int rank);

/// Sends to this rank number fail so from now on, as if its process were gone; -1: to nobody.
void break_sends_to(int rank);

/// The next data that this rank number sends arrives, and is not seen to be over.
void never_end_next_data_of(int rank);

/// What this rank number sends is lost from now on, as if the rank were stopped; -1: nobody's.
void lose_sends_of(int rank);

}  // namespace tessera::internal::testing
