#pragma once

#include <string>
#include <vector>

#include "tessera/collective.h"
#include "tessera/core/comm/nccl/api.h"

namespace tessera::internal::nccl {

/// Queues a collective or a message of rank `rank` of `size` on `stream`. Returns NCCL's result.
/// gather, scatter and all_to_all are sends and receives in one group of calls.
Result launch(const Api& api, const Collective& collective, int rank, int size, OpaqueComm* comm,
              void* stream);

/// Queues several messages, which NCCL starts together. Leaves out messages of a rank to itself.
/// Returns NCCL's result.
Result launch_messages(const Api& api, const std::vector<Collective>& messages, int rank,
                       OpaqueComm* comm, void* stream);

/// Returns the feature that `collective` needs and NCCL lacks, as ProcessGroup::refuse() names it:
/// bitwise operations, sums of int16, messages from any rank. "" if it lacks nothing.
std::string find_lacking(const Collective& collective);

}  // namespace tessera::internal::nccl
