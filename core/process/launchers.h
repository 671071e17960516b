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
/// - a batch script of SLURM, or a shell of salloc, starts mpirun. It has SLURM_PROCID 0 and
///   SLURM_NTASKS, but is no task of srun: only that has SLURM_STEP_NUM_TASKS.
/// Which of the table's launchers counts:
/// - A launcher whose variables are all set; only some of them are an error. SLURM's without
///   SLURM_STEP_NUM_TASKS belong to no launcher, but are a sign that several tasks are wanted.
/// - RANK and WORLD_SIZE win. If a launcher set them (TORCHELASTIC_RUN_ID is set) that knows of
///   ranks on this host alone, no other launcher may say that it has several processes: each of
///   those has started such a launcher, or such a launcher has started theirs. If they were set by
///   hand, they may name more processes than another launcher has started (each of its processes
///   starts some). They may not name fewer, nor another rank of as many: those were left over from
///   another job.
/// - Otherwise the last one that the others may have started. A launcher of a single process, or a
///   step of srun with one task per node, may have started a launcher of more processes. The rest
///   must agree with it.
/// All contradictions are one kind of error, which names the variables.
///
/// There is no fallback to a world of one: a job whose processes train alone looks like one that
/// works. A sign of several processes without a rank is an error; TESSERA_WORLD=single asks for
/// one.

/// Local. Returns who this process is: `rank` to `host_of_rank_0` are filled in. Adds a problem to
/// the reader for everything that is wrong.
Environment read_identity(VariableReader& reader);

/// Local. Returns the number of tasks of the node with this index in a list of SLURM: 3 for
/// "4(x2),3" and 2. nullopt if the list is malformed or shorter.
std::optional<int> tasks_of_node(const std::string& list, int node);

/// Local. Returns the first host of a list of SLURM: "node03" for "node[03-07,09],login". "" for a
/// malformed one.
std::string first_host(const std::string& list);

/// Local. Returns who the variables say that this process is, for one that may start ranks itself
/// on this host. A place to meet without a rank, as programs set it for
/// torch.multiprocessing.spawn(), and a number of tasks, as a batch script of SLURM has it, are no
/// signs of others; several nodes are.
absl::StatusOr<Environment> read_own_rank();

}  // namespace tessera::internal
