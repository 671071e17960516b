#pragma once

#include <functional>
#include <optional>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace tessera {

/// A process's identity in its job, and the place where the job's ranks meet, as environment
/// variables give them.
///
/// Identity. Each launcher has a family of variables; a family that is set in part is an error:
/// - TESSERA_WORLD: "single" makes this process a world of one, whatever a scheduler says
/// - RANK, WORLD_SIZE (tessera-run, torchrun, PyTorchJob, by hand); LOCAL_RANK and LOCAL_WORLD_SIZE
///   are the same within this host, and either both are set or neither is. RANK and WORLD_SIZE win
///   over the families below.
/// - SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE (srun)
/// - OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE (Open MPI's mpirun)
/// - MV2_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE (MVAPICH's mpirun)
/// - PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS (mpiexec of MPICH and Intel MPI)
/// It is an error if several families each give a world of several processes but differ in rank or
/// size (Note [Launchers]). It is also an error if variables of a launcher show that this process
/// is one of several, but none gives its rank. If none of these variables is set, the process is a
/// world of one.
///
/// Place:
/// - TESSERA_STORE: file:///dir/name: where ranks of one host meet, at a Unix socket of that path,
///   in a directory of mode 0700 that belongs to this user; or tcp://host:port, as MASTER_* below
/// - MASTER_ADDR, MASTER_PORT: alternatively, address and port at which rank 0 listens; both or
///   neither
/// - if none of these is set, under srun and mpirun: ranks on one host meet at a socket of the
///   job's own (docs/clusters.md), srun tasks on several hosts at rank 0's host
/// - TORCHELASTIC_USE_AGENT_STORE: if True, torchrun's agent has a store at MASTER_*, in which rank
///   0 publishes where it listens
/// - TESSERA_JOB_TOKEN: a secret that all ranks of a job share; required if they meet at an address
///   that other machines reach
/// - TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT: the launcher's name of the job, and which
///   attempt this is (optional). Ranks of another job or attempt are not admitted at an address;
///   ranks of another srun or mpirun job are not admitted at a path either
///
/// Others, all optional:
/// - TESSERA_JOB_PAGE: where ranks record for tessera-run or launch() why they fail and how far
///   they have come (JobPage)
/// - TESSERA_LAUNCHER_PID: the process whose launch() has started this rank
/// - TESSERA_FLIGHT_DUMP: a directory for the last calls of the ranks (docs/flight-recorder.md). On
///   CPUs the first rank of each host that notices a failure writes the calls of all ranks of its
///   host; with the backend mpi and over NCCL every rank that fails writes only its own calls
/// - TESSERA_BACKEND: what ProcessGroupOptions::backend takes, for programs that leave it open
/// - TESSERA_MPI: which MPI the mpi backend uses, "openmpi", "mpich" (also Intel MPI, MVAPICH) or
///   the path of a libmpi, in place of the MPI of the launcher that started this process. Has no
///   effect if the program has loaded an MPI itself: then that one is used
/// - TESSERA_MPI_MODULE: the path of Tessera's module for that MPI (docs/hosts.md)
/// - TESSERA_HOST: a name of up to 64 letters, digits, '.', '_' and '-' by which backend "hosts"
///   decides which ranks are on one host, in place of the kernel's host name; for trying two hosts
///   on one machine
/// - TESSERA_VERBOSE: 1 makes init_process_group say on stderr who this process is and which
///   variables say so
/// Integers are read strictly: digits only, the whole string.
struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  /// True if variables give local_rank and local_world_size, or the process is alone; otherwise the
  /// two are defaults.
  bool has_local = false;
  /// The launcher that set the variables, such as "Open MPI's mpirun"; or "".
  std::string launcher;
  /// The variable that gave the rank, such as "OMPI_COMM_WORLD_RANK"; or "".
  std::string rank_variable;
  std::string job_id;          ///< the scheduler's name of the job, if it has one: "slurm-17.0"
  std::string host_of_rank_0;  ///< "" if no variable says it
  std::string store_url;       ///< "" unless TESSERA_STORE is set
  /// The address where rank 0 listens: MASTER_ADDR, or, if srun's tasks are on several hosts, rank
  /// 0's host; else "".
  std::string master_addr;
  int master_port = 0;
  bool agent_store = false;
  std::string job_token;
  std::string run_id;   ///< "" unless TORCHELASTIC_RUN_ID is set
  std::string attempt;  ///< "" unless TORCHELASTIC_RESTART_COUNT is set
  std::string host;     ///< "" unless TESSERA_HOST is set
  bool is_verbose = false;

  /// Returns true if a scheduler or mpirun started this process as one of several.
  bool is_of_scheduler() const {
    return world_size > 1 && !rank_variable.empty() && rank_variable != "RANK";
  }
  /// Returns true if all ranks are known to be on this host.
  bool is_one_host() const { return has_local && local_world_size == world_size; }
};

/// Gives the value of a variable, or nothing if it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;

/// Looks up `name` in the process's own environment.
std::optional<std::string> process_environment(const char* name);

/// What read_environment() must read. Set a field to false if that part is not needed, for example
/// because the program has given it itself.
struct EnvironmentNeeds {
  bool identity = true;  ///< read rank, world size and the like
  bool store = true;     ///< read where ranks meet
};

/// Local. Reads and checks all variables; the error lists every problem, not only the first.
absl::StatusOr<Environment> read_environment(const EnvironmentLookup& lookup = process_environment,
                                             EnvironmentNeeds needs = {});

/// Local. Returns one line for people: "rank 2 of 4, local rank 2 of 4, by Open MPI's mpirun
/// (OMPI_COMM_WORLD_RANK)". Contains no secret.
std::string describe_identity(const Environment& environment);

/// Local. Returns the path in a file:// url, if it is absolute and lies in a directory that exists,
/// belongs to this user and is closed to all others. The error says how to make such a directory,
/// and never advises to close a directory that others may use.
absl::StatusOr<std::string> parse_store_url(const std::string& url);

/// An address at which rank 0 listens.
struct StoreAddress {
  std::string host;
  int port = 0;
};

/// Local. Returns true if `url` begins with tcp://.
bool is_tcp_url(const std::string& url);

/// Local. Returns the host and the port of `url`, which must be "tcp://host:port" or
/// "tcp://[::1]:port" and nothing else: a query ("?rank=0") is an error.
absl::StatusOr<StoreAddress> parse_tcp_url(const std::string& url);

}  // namespace tessera
