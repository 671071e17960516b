#pragma once

#include <optional>
#include <string>

#include <absl/status/statusor.h>

#include "tessera/core/process/variable_reader.h"
#include "tessera/environment.h"

namespace tessera::internal {

/// Note [Launchers]
/// ~~~~~~~~~~~~~~~~
/// A process may see the variables of several launchers, because launchers start each other, and
/// each passes its environment on:
/// - srun starts one process per host (torchrun, or MPICH's proxy), which starts the ranks there;
/// - a SLURM batch script, or a shell of salloc, starts mpirun. The script or shell has
///   SLURM_PROCID 0 and SLURM_NTASKS, but is not a task of srun: only tasks have
///   SLURM_STEP_NUM_TASKS.
/// These rules choose the launcher:
/// - All of a launcher's variables must be set; if only some of them are, that is an error.
///   SLURM's variables without SLURM_STEP_NUM_TASKS belong to no launcher, but show that several
///   tasks are wanted.
/// - RANK and WORLD_SIZE take precedence. What other launchers may then say depends on who set
///   them:
///   - If TORCHELASTIC_RUN_ID is set, torchrun or tessera-run did. If that launcher knows only
///     ranks on this host, it is an error if another launcher names several processes: each of
///     these has started a tessera-run or torchrun of its own, or each rank has started a launcher
///     of its own.
///   - Otherwise RANK and WORLD_SIZE were set by hand. They may name more processes than another
///     launcher has started, because each process of that launcher may start some. They may not
///     name fewer, nor the same number with another rank: such values are left over from another
///     job.
/// - Otherwise the launcher that was started last, as far as the variables tell, is chosen. A
///   launcher of a single process, or a step of srun with one task per node, may have started a
///   launcher of more processes. The other launchers must agree with the chosen one.
/// Every contradiction is reported by the same kind of error, which names the variables.
///
/// There is no fallback to a world of one, because a job whose processes train alone looks like one
/// that works. If variables ask for several processes but give no rank, that is an error;
/// TESSERA_WORLD=single asks for a world of one.

/// Local. Returns this process's identity: the fields of Environment from `rank` through
/// `host_of_rank_0`. Adds each problem to `reader`.
Environment read_identity(VariableReader& reader);

/// Local. Returns the number of tasks on node number `node` (from 0) in a SLURM list: in the list
/// "4(x2),3", node 2 has 3 tasks. nullopt if the list is malformed or too short.
std::optional<int> tasks_of_node(const std::string& list, int node);

/// Local. Returns the first host of a SLURM list: in the list "node[03-07,09],login" it is
/// "node03". "" if the list is malformed.
std::string first_host(const std::string& list);

/// Local. Like read_identity(), for a process that may start ranks itself on this host. So a
/// meeting place without a rank (programs set one for torch.multiprocessing.spawn()) does not count
/// as a sign of other processes, nor does a number of tasks (a SLURM batch script has one). A
/// number of nodes above 1 does.
absl::StatusOr<Environment> read_own_rank();

}  // namespace tessera::internal
