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
/// thread waits until the streams that were current at the allocation and at the drop have run the
/// work that they had at the drop, deregisters the memory from the communicators and frees it. No
/// other thread waits, because a communicator may be in an abort that hangs. A communicator that is
/// finished before that deregisters the memory itself; the memory then stays usable as ordinary
/// memory.

/// Returns an uninitialised 1-d tensor of `numel` elements, in at least `bytes` bytes from NCCL's
/// allocator, registered with `communicators`; see NcclOptions::Memory. Local for buffers.
/// Collective for windows, with equal `bytes`, and blocks for milliseconds. `pending` is the call
/// that allocates. Throws c10::Error if there is no space, or if NCCL makes no window.
at::Tensor allocate_registered(Pending& pending,
                               const std::vector<std::shared_ptr<Communicator>>& communicators,
                               int64_t numel, at::ScalarType dtype, int64_t bytes,
                               Communicator::Registration kind);

}  // namespace tessera::internal::nccl
