#pragma once

#include <string>
#include <vector>

#include "tessera/collective.h"
#include "tessera/core/comm/nccl/api.h"

namespace tessera::internal::nccl {

/// Queues a collective or message of this rank on `stream`, and returns NCCL's result. `rank` and
/// `size` are those of the group; `comm` may number its ranks differently for a reduce_scatter.
/// gather, scatter and all_to_all become sends and receives that NCCL starts together.
Result launch(const Api& api, const Collective& collective, int rank, int size, OpaqueComm* comm,
              void* stream);

/// Queues several messages, which NCCL starts together. Leaves out messages of a rank to itself.
/// Returns NCCL's result.
Result launch_messages(const Api& api, const std::vector<Collective>& messages, int rank,
                       OpaqueComm* comm, void* stream);

/// Returns what `collective` needs and NCCL lacks, in the words of ProcessGroup::refuse(): bitwise
/// operations, reductions of int16, or receives whose sender may be any rank. Returns "" if NCCL
/// lacks nothing.
std::string find_lacking(const Collective& collective);

}  // namespace tessera::internal::nccl
