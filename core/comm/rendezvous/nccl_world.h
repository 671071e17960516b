#pragma once

#include <memory>

#include "tessera/environment.h"
#include "tessera/process_group.h"
#include "tessera/process_group_options.h"

namespace tessera::internal {

/// Collective over the ranks of a job: its world on GPUs that communicate by NCCL, one per rank.
/// All ranks meet first. If one of them lacks something (LibTorch's CUDA half, a driver, its GPU,
/// NCCL), all throw the same c10::Error, which names the ranks, and none waits for it.
std::shared_ptr<ProcessGroup> make_nccl_world(ProcessGroupOptions options,
                                              const Environment& environment);

}  // namespace tessera::internal
