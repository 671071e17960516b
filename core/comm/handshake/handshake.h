#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tessera/core/comm/meeting/endpoint.h"
#include "tessera/core/comm/shm/world.h"

namespace tessera::internal {

/// Who wants to meet whom.
struct HandshakeOptions {
  int rank = 0;
  int world_size = 1;
  std::string job_token;
  std::chrono::milliseconds timeout;
  std::string device = "cpu";  ///< the kind that this rank uses: "cpu" or "cuda"
};

/// Collective over the ranks of a job. Returns the shared memory world in which all ranks met. See
/// Note [Handshake]. Throws CommError, with one cause on all ranks that are there, when a rank
/// number is taken twice, when world sizes, builds or job tokens differ, when ranks are on
/// different hosts, when a rank dies or gives up meanwhile, when one cannot make or map the shared
/// page, and at the time-out, naming the missing ranks.
std::shared_ptr<shm::World> meet(const Endpoint& endpoint, const HandshakeOptions& options);

/// Collective over the ranks of a job, which may be on several hosts. Returns a prefix for keys of
/// the place's store, equal on all ranks and new for each world. Throws as meet() does, except that
/// ranks on other hosts fit.
std::string meet_on_store(const Endpoint& endpoint, const HandshakeOptions& options);

}  // namespace tessera::internal
