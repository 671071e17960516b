#pragma once

#include <memory>

#include "tessera/process_group.h"
#include "tessera/process_group_options.h"

namespace tessera {

/// Collective over all ranks of the job; blocks until all have called it. Connects the ranks and
/// returns the group of all of them. Checks that no rank number is taken twice and that all ranks
/// agree on the world size. Without a launcher it returns a world of one and communicates with
/// nobody. Throws c10::Error that lists every problem of the environment at once. Throws CommError
/// if what the ranks pass does not match, or if peers do not come within the time-out. In the
/// latter case the error names the missing ranks (over MPI, only missing ranks that have called
/// MPI_Init). An error on one rank is thrown on all ranks that are connected by then.
///
/// Threads that are started here and in parallelize() inherit the calling thread's modes. So call
/// LibTorch's setFlushDenormal(), which sets a mode of the calling thread, before this function.
///
/// With a CUDA device it loads LibTorch's CUDA half (docs/gpu.md says from where; takes up to
/// seconds), makes the device the calling thread's current one, and loads NCCL if the backend is
/// nccl. So call it before anything else that asks for CUDA. If a rank lacks a library or a device,
/// every rank throws the same c10::Error, which names the ranks and the remedies.
std::shared_ptr<ProcessGroup> init_process_group(ProcessGroupOptions options = {});

}  // namespace tessera
