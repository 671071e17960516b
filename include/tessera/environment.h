#pragma once

#include <functional>
#include <optional>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace tessera {

/// How a process learns about its job from the variables that tessera-run and torchrun export:
/// - RANK, WORLD_SIZE: this rank and the number of ranks; both or neither
/// - LOCAL_RANK, LOCAL_WORLD_SIZE: the same on this host; both or neither
/// - TESSERA_STORE: where ranks of one host meet: file:///dir/name, where a socket is made, in a
///   directory of mode 0700 that is ours
/// - MASTER_ADDR, MASTER_PORT: or: address and port at which rank 0 listens; both or neither
/// - TORCHELASTIC_USE_AGENT_STORE: True: torchrun's agent has a store at that address, and rank 0
///   says in it where it listens
/// - TESSERA_JOB_TOKEN: a secret that all ranks of a job share: needed where they meet at an
///   address that other machines reach
/// - TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT: what the launcher calls the job, and which
///   attempt it is: ranks of another one are strangers (optional)
/// - TESSERA_JOB_PAGE: where tessera-run is told why a rank fails (JobPage; optional)
/// Integers are read strictly: digits only, the whole string. With none of the first six set, a
/// process is a world of one, unless variables of Open MPI, MVAPICH, MPICH, Intel MPI or SLURM say
/// that it is one of several: that is an error.
struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string store_url;    ///< "" unless TESSERA_STORE is set
  std::string master_addr;  ///< "" unless MASTER_* are set
  int master_port = 0;
  bool agent_store = false;
  std::string job_token;
  std::string run_id;   ///< "" unless TORCHELASTIC_RUN_ID is set
  std::string attempt;  ///< "" unless TORCHELASTIC_RESTART_COUNT is set
};

/// Gives the value of a variable, or nothing if it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;

/// The process's own environment.
std::optional<std::string> process_environment(const char* name);

/// What the caller brings along and the environment need not say.
struct EnvironmentNeeds {
  bool identity = true;  ///< read RANK, WORLD_SIZE, LOCAL_*
  bool store = true;     ///< read TESSERA_STORE, MASTER_*
};

/// Local. Reads and checks all variables; the error lists every problem, not only the first.
absl::StatusOr<Environment> read_environment(const EnvironmentLookup& lookup = process_environment,
                                             EnvironmentNeeds needs = {});

/// Local. The path in a file:// url, if it is absolute and lies in a directory that exists, belongs
/// to this user and is closed to all others. An error says how to come by such a directory; it
/// advises to close none that others may use.
absl::StatusOr<std::string> parse_store_url(const std::string& url);

}  // namespace tessera
