#pragma once

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
/// So a launcher counts only if all its variables are set; SLURM's without SLURM_STEP_NUM_TASKS are
/// those of no launcher but a sign that several tasks are wanted. Nothing is said against a
/// launcher of several processes by one of a single process, nor by a step of srun with one task
/// per node against one of more processes: these have started the other one, or its proxies. RANK
/// and WORLD_SIZE win. If a launcher set them (TORCHELASTIC_RUN_ID is set), it is the innermost
/// one, unless it knows of ranks on this host alone where another one has several processes: of
/// these, each has started such a launcher, or such a launcher has started theirs. If they were set
/// by hand, they may name more processes than the scheduler has started (each of its processes
/// starts some), but not fewer, nor another rank of as many: those were left over from another job.
/// All other launchers must agree.
///
/// What is never done is to fall back to a world of one: a job whose processes train alone looks
/// like one that works. A sign of several processes without a rank is an error, and
/// TESSERA_WORLD=single says that one is meant.

/// Local. Who this process is: `rank` to `host_of_rank_0` are filled in. Adds a problem to the
/// reader for everything that is wrong.
Environment read_identity(VariableReader& reader);

}  // namespace tessera::internal
