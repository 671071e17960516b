#pragma once

#include "tessera/collective.h"
#include "tessera/core/comm/nccl/api.h"

namespace tessera::internal::nccl {

/// Queues an all_reduce, reduce_scatter, all_gather or broadcast on `stream`. Returns NCCL's
/// result.
Result launch(const Api& api, const Collective& collective, OpaqueComm* comm, void* stream);

}  // namespace tessera::internal::nccl
