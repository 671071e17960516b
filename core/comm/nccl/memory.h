#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/nccl/communicator.h"
#include "tessera/core/comm/nccl/pending.h"

namespace tessera::internal::nccl {

/// Note [End of registered memory]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
/// ncclMemFree unmaps memory at once, even if queued work still uses it; LibTorch's allocator would
/// only reuse it for later work on the stream. So when the last tensor is dropped, a separate
/// thread waits for two streams: the one that was current at the allocation and the one that is
/// current at the drop. When both have run the work that they had at the drop, it deregisters the
/// memory from the communicators and frees it. Only this thread waits, because deregistering must
/// wait for a communicator that is being aborted, and the abort may hang. A communicator that is
/// finished earlier deregisters the memory itself; the memory then stays usable as ordinary memory.

/// Returns an uninitialised 1-d tensor of `numel` elements. It lies in memory of NCCL's allocator,
/// of at least `bytes` bytes, which is registered with `communicators`; see NcclOptions::Memory. If
/// `kind` is kBuffer, this is local. If it is kWindow, this is collective, all ranks must pass the
/// same `bytes`, and it blocks for milliseconds. `pending` is the call that allocates. Throws
/// c10::Error if there is no memory, or if NCCL makes no window.
at::Tensor allocate_registered(Pending& pending,
                               const std::vector<std::shared_ptr<Communicator>>& communicators,
                               int64_t numel, at::ScalarType dtype, int64_t bytes,
                               Communicator::Registration kind);

}  // namespace tessera::internal::nccl
