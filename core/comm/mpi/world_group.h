#pragma once

#include <cstdint>
#include <memory>

#include "tessera/core/comm/group/group.h"
#include "tessera/core/comm/mpi/world.h"

namespace tessera::internal::mpi {

/// The group of all ranks of a communicator, and the state that all groups made from it share.
struct WorldGroup {
  std::shared_ptr<Group> group;
  std::shared_ptr<World> world;
};

/// Says who calls MPI_Init_thread and MPI_Finalize: the application or Tessera.
enum class MpiOwner : uint8_t { kApplication, kTessera };

/// Collective over the ranks of `comm`. Makes the group of these ranks, on a duplicate of `comm`.
/// From then on the progress thread of this process calls MPI. With MpiOwner::kTessera, initialises
/// MPI if it is not initialised yet, and then finalises it at the end of the process. Throws
/// c10::Error if MPI has been finalised, if MPI is not initialised and `owner` is kApplication, or
/// if the thread level of MPI is lower than MPI_THREAD_SERIALIZED. Throws CommError if ranks do not
/// call this (or MPI_Init_thread) within the time-out, or if the progress thread is in an MPI call
/// that does not return.
WorldGroup make_world(const Calls& calls, Handle comm, Member::Patience patience, MpiOwner owner);

}  // namespace tessera::internal::mpi
