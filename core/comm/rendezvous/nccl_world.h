#pragma once

#include <memory>

#include "tessera/environment.h"
#include "tessera/process_group.h"
#include "tessera/process_group_options.h"

namespace tessera::internal {

/// Collective over the ranks of a job: its world on GPUs that communicate by NCCL, one per rank.
/// All ranks meet first, so that what one of them lacks (LibTorch's CUDA half, a driver, its GPU,
/// NCCL) is everyone's c10::Error that names the ranks, and nobody waits for one that cannot come.
std::shared_ptr<ProcessGroup> make_nccl_world(ProcessGroupOptions options,
                                              const Environment& environment);

}  // namespace tessera::internal
