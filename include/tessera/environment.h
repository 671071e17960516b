#pragma once

#include <functional>
#include <optional>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace tessera {

/// What the variables that tessera-run and torchrun export say about a process's job:
/// - RANK, WORLD_SIZE: this rank and the number of ranks; both or neither
/// - LOCAL_RANK, LOCAL_WORLD_SIZE: the same on this host; both or neither
/// - TESSERA_STORE: file:///dir/name: where ranks of one host meet, at a Unix socket of that path,
///   in a directory of mode 0700 that belongs to this user
/// - MASTER_ADDR, MASTER_PORT: alternatively, address and port at which rank 0 listens; both or
///   neither
/// - TORCHELASTIC_USE_AGENT_STORE: if True, torchrun's agent has a store at that address, in which
///   rank 0 publishes where it listens
/// - TESSERA_JOB_TOKEN: a secret that all ranks of a job share; required if they meet at an address
///   that other machines reach
/// - TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT: the launcher's name of the job, and which
///   attempt this is; ranks of another job or attempt are not admitted (optional)
/// - TESSERA_JOB_PAGE: where ranks record for tessera-run why they fail (JobPage; optional)
/// Integers are read strictly: digits only, the whole string. Without RANK and WORLD_SIZE a process
/// is a world of one; it is an error then if LOCAL_RANK, TESSERA_STORE or MASTER_ADDR is set, or if
/// variables of Open MPI, MVAPICH, MPICH, Intel MPI or SLURM say that it is one of several.
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
/// to this user and is closed to all others. The error says how to make such a directory, and never
/// advises to close a directory that others may use.
absl::StatusOr<std::string> parse_store_url(const std::string& url);

}  // namespace tessera
