#pragma once

#include <memory>

#include "tessera/process_group.h"
#include "tessera/process_group_options.h"

namespace tessera {

/// Collective over all ranks of the job: meets the peers and returns the world. Checks that no rank
/// number is taken twice and that all ranks agree on the world size, before any other use. Without
/// a launcher it returns a world of one and communicates with nobody. Throws c10::Error that lists
/// every problem of the environment at once, and CommError when peers do not come within the
/// time-out (naming the missing ranks) or do not fit. What makes one rank fail while the ranks meet
/// is told to all that are there.
///
/// With a CUDA device it loads LibTorch's CUDA half (load_cuda_library() says from where; up to
/// seconds), so it comes before anything else that asks for CUDA, makes the device the calling
/// thread's current one, and then loads NCCL where the backend is nccl. What one rank lacks for
/// that, every rank throws, as one c10::Error that names the ranks and the remedies.
std::shared_ptr<ProcessGroup> init_process_group(ProcessGroupOptions options = {});

}  // namespace tessera
