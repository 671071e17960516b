#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tessera/core/comm/meeting/endpoint.h"
#include "tessera/core/comm/shm/world.h"

namespace tessera::internal {

/// What a rank knows of the job before the handshake.
struct HandshakeOptions {
  int rank = 0;
  int world_size = 1;
  std::string job_token;
  std::chrono::milliseconds timeout;
  std::string device = "cpu";  ///< the kind that this rank uses: "cpu" or "cuda"
  shm::PartOfJob part = {};    ///< if the ranks are not all of the job's
};

/// Collective over the ranks of a job. Returns the shared memory world in which all ranks met. See
/// Note [Handshake]. Throws CommError, with the same cause on all ranks that are connected, if a
/// rank number is taken twice, world sizes, builds or job tokens differ, ranks are on different
/// hosts, a rank dies or gives up meanwhile, or one cannot make or map the shared page; and at the
/// time-out, naming the missing ranks.
std::shared_ptr<shm::World> meet(const Endpoint& endpoint, const HandshakeOptions& options);

/// Collective over the ranks of a job, which may be on several hosts. Returns a prefix for keys in
/// the endpoint's store, equal on all ranks and new for each world. Throws as meet() does, but
/// accepts ranks on several hosts.
std::string meet_on_store(const Endpoint& endpoint, const HandshakeOptions& options);

}  // namespace tessera::internal
