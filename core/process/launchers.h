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
/// - srun starts one torchrun, or MPICH's proxy, per host, which start the ranks;
/// - a SLURM batch script, or a shell of salloc, starts mpirun. It has SLURM_PROCID 0 and
///   SLURM_NTASKS, but is not a task of srun: only tasks have SLURM_STEP_NUM_TASKS.
/// These rules choose the launcher:
/// - All of a launcher's variables must be set; if only some of them are, that is an error. SLURM's
///   without SLURM_STEP_NUM_TASKS belong to no launcher, but show that several tasks are wanted.
/// - RANK and WORLD_SIZE take precedence. If they were set by a launcher (TORCHELASTIC_RUN_ID is
///   set) that knows only ranks on this host, no other launcher may say that it has several
///   processes: each of those would have started its own tessera-run or torchrun, or each rank
///   would have started its own other launcher. If they were set by hand, they may name more
///   processes than another launcher has started, because each of its processes may start some.
///   They may not name fewer, nor the same number with another rank: such values are left over
///   from another job.
/// - Otherwise the last launcher that the others may have started is chosen. A launcher of a single
///   process, or a step of srun with one task per node, may have started a launcher of more
///   processes. The other launchers must agree with the chosen one.
/// Every contradiction is reported by the same kind of error, which names the variables.
///
/// There is no fallback to a world of one, because a job whose processes train alone looks like one
/// that works. If variables ask for several processes but give no rank, that is an error;
/// TESSERA_WORLD=single asks for a world of one.

/// Local. Returns this process's identity: fills in `rank` to `host_of_rank_0`. Adds each problem
/// to the reader.
Environment read_identity(VariableReader& reader);

/// Local. Returns the number of tasks on node `node` in a SLURM list: 3 for "4(x2),3" and 2.
/// nullopt if the list is malformed or too short.
std::optional<int> tasks_of_node(const std::string& list, int node);

/// Local. Returns the first host of a SLURM list: "node03" for "node[03-07,09],login". "" if the
/// list is malformed.
std::string first_host(const std::string& list);

/// Local. Like read_identity(), for a process that may start ranks itself on this host. A meeting
/// place without a rank (programs set one for torch.multiprocessing.spawn()) and a number of tasks
/// (a SLURM batch script has one) do not mean that there are other processes; several nodes do.
absl::StatusOr<Environment> read_own_rank();

}  // namespace tessera::internal
