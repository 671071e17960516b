#pragma once

#include <cstdint>
#include <memory>

#include "tessera/core/comm/group/group.h"
#include "tessera/core/comm/mpi/world.h"

namespace tessera::internal::mpi {

/// The group of all ranks of a communicator, and what its groups share.
struct WorldGroup {
  std::shared_ptr<Group> group;
  std::shared_ptr<World> world;
};

/// Which of the two calls MPI_Init_thread and MPI_Finalize.
enum class MpiOwner : uint8_t { kApplication, kTessera };

/// Collective over the ranks of `comm`, which is duplicated. From then on the progress thread uses
/// that MPI in this process. If MPI is not initialised, initialises it if `owner` says so, and
/// finalises it at the end of the process. Throws c10::Error if MPI has been finalised, is not
/// initialised and may not be, or is or becomes initialised at a lower level than
/// MPI_THREAD_SERIALIZED; CommError if ranks do not come, also to MPI_Init_thread, or if the
/// progress thread is in a call of MPI that does not return.
WorldGroup make_world(const Calls& calls, Handle comm, Member::Patience patience, MpiOwner owner);

}  // namespace tessera::internal::mpi
