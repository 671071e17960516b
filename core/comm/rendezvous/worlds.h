#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/core/comm/group/group.h"
#include "tessera/core/device/gpu_choice.h"
#include "tessera/environment.h"
#include "tessera/process_group.h"
#include "tessera/process_group_options.h"

namespace tessera::internal {

// How each backend makes the world of a job. All are collective over the ranks of the job.

/// Makes a world on one host, in shared memory. If the ranks use GPUs (several ranks may share
/// one), data passes through that memory on its way between GPUs. If a rank lacks something that
/// this needs, all ranks throw the same c10::Error, which names the ranks that lack it.
std::shared_ptr<ProcessGroup> make_shm_world(ProcessGroupOptions options,
                                             const Environment& environment);

/// Makes a world on GPUs, one per rank, that communicate by NCCL. All ranks meet first, so if a
/// rank lacks something (LibTorch's CUDA libraries, a driver, its GPU, NCCL), no rank waits for it:
/// all throw the same c10::Error, which names the ranks that lack something.
std::shared_ptr<ProcessGroup> make_nccl_world(ProcessGroupOptions options,
                                              const Environment& environment);

/// Makes a world on the CPUs of any number of hosts, which communicate by MPI; mpirun or srun has
/// started the ranks. Throws c10::Error on a rank that finds no MPI, and on every rank if MPI's
/// ranks are not those that the environment names.
std::shared_ptr<Group> make_mpi_world(ProcessGroupOptions options, const Environment& environment);

/// Makes a world on the CPUs of any number of hosts, in shared memory inside each host and by MPI
/// between hosts; mpirun or srun has started the ranks. TESSERA_HOST, or else the kernel, tells
/// hosts apart. If all ranks are on one host, makes a world in shared memory alone. If hosts have
/// unequal numbers of ranks, one rank each, or ranks whose numbers are not consecutive, uses MPI
/// alone. Throws as make_mpi_world() does, and c10::Error on every rank if some host's ranks cannot
/// share memory.
std::shared_ptr<ProcessGroup> make_hosts_world(ProcessGroupOptions options,
                                               const Environment& environment);

/// The ranks of a job that are on this host: all of them if the job has one host.
struct HostPart {
  std::vector<int> ranks;       ///< their numbers in the job, ascending
  int own = 0;                  ///< this rank's index in `ranks`
  std::string host;             ///< the host's name, for error messages
  std::string name;             ///< name of the abstract socket at which the first rank listens
  std::string group = "world";  ///< the group's name
};

/// Collective over part.ranks. Makes their world in shared memory, for make_hosts_world(). A group
/// of several hosts uses it from two threads of each rank. If the world cannot be made, the ranks
/// throw within half a minute.
std::shared_ptr<Group> make_shm_part(const ProcessGroupOptions& options,
                                     const Environment& environment, HostPart part);

/// Local. Returns how this rank's GPU is chosen: by the index in `options`, or else by its local
/// rank.
GpuChoice gpu_of(const ProcessGroupOptions& options, const Environment& environment,
                 GpuChoice::Use use);

/// Local. Returns the name by which messages call this rank's host.
std::string host_name(const Environment& environment);

}  // namespace tessera::internal
