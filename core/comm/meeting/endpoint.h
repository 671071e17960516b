#pragma once

#include <chrono>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/core/comm/meeting/job_store.h"
#include "tessera/environment.h"

namespace tessera::internal {

/// Note [Endpoints]
/// ~~~~~~~~~~~~~~~~
/// Ranks meet in one of six places, and each is a c10d::Store to those who meet there:
/// - a path (file://, tessera-run): a Unix socket; the first rank that comes is the host
///   (SocketPath).
/// - a path of the job's own, under srun and mpirun on one host (path_of_job()); else the same.
/// - a name, where MPI connects the ranks of several hosts: on each host the first of its ranks
///   listens at an abstract socket and tells the others by MPI (find_at_name()).
/// - an address (tcp://, or MASTER_ADDR and MASTER_PORT): a TCP port at which rank 0 listens as the
///   host (TcpAddress). Every frame has a MAC (Note [Message authentication]).
/// - torchrun's store, which anybody may write: there rank 0 only publishes, with a MAC, where it
///   listens: at a Unix socket if all ranks are on one host, else at a TCP port of its own.
/// - a store that the user gives: rank 0 is the host, and all messages in it have MACs
///   (TimeLimitedStore).
/// In all but the last every member is connected to the host, so the end of either process is
/// noticed at once. Every wait has a time-out.

/// Where this rank meets the others.
struct Endpoint {
  c10::intrusive_ptr<c10d::Store> store;
  JobStore* own = nullptr;  ///< `store`, unless it is the user's
  bool is_host = false;     ///< whether this rank answers the others
  std::string place = {};   ///< describe_place()
  /// When the search for it began: the time-out covers search and handshake.
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
};

/// What determines the endpoint.
struct EndpointOptions {
  Environment environment;
  std::string store_url;                  ///< wins over the environment
  const char* url_source = "store_url";   ///< where that was given, for errors
  c10::intrusive_ptr<c10d::Store> store;  ///< wins over both
  std::chrono::milliseconds timeout;
};

/// Local. The place for people: "/tmp/tessera-1000/slurm-17.0", "MASTER_ADDR node1, MASTER_PORT
/// 29500". Contains no secret.
std::string describe_place(const EndpointOptions& options);

/// Collective in that one rank must be the host, but returns as soon as this rank is connected.
/// Throws c10::Error that names the variable, the value and the remedy if the place is invalid, and
/// CommError at the time-out, which says what was found: an unknown host name, a closed port, no
/// answer, a program that is not a rank of this job, a stopped host, or a stopped process that
/// holds the lock.
Endpoint find_endpoint(EndpointOptions options);

}  // namespace tessera::internal
