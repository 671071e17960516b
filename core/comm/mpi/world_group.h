#pragma once

#include <memory>

#include "tessera/core/comm/group/group.h"
#include "tessera/core/comm/mpi/world.h"

namespace tessera::internal::mpi {

/// The group of all ranks of a communicator, and what its groups share.
struct WorldGroup {
  std::shared_ptr<Group> group;
  std::shared_ptr<World> world;
};

/// Collective over the ranks of `comm`, which is duplicated. MPI is initialised at
/// MPI_THREAD_SERIALIZED or above. Throws CommError where ranks do not come, which names
/// `function`, what the program has called.
WorldGroup make_world(const char* function, const Calls& calls, Handle comm,
                      Member::Patience patience);

}  // namespace tessera::internal::mpi
