#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/layout/read_only_memory.h"
#include "tessera/process_group.h"

namespace tessera::internal {

/// Copies `values` into `tensor`, which has the same sizes. Graphs that saved `tensor` stay valid.
/// Where several elements of `tensor` share memory, as after expand(), that memory gets the value
/// that `values` has for the first of these elements. Grad mode must be off. Local.
void overwrite(const at::Tensor& tensor, const at::Tensor& values);

/// Returns, for each of `tensors`, whether it lies in read-only memory on any rank. Each rank
/// passes as `read_only` what is read-only there. All ranks give the same number of tensors, at
/// least one. Collective, blocking: one all_reduce named `what`.
std::vector<bool> read_only_on_any_rank(ProcessGroup& group, const std::vector<at::Tensor>& tensors,
                                        const ReadOnlyMemory& read_only, std::string_view what);

/// A tensor that could not take another rank's values.
struct UnwrittenReplica {
  size_t index;         ///< index in the `tensors` given to sync_replicas()
  std::string problem;  ///< "lies in memory that this process may not write ..."
};

/// Gives every rank the values that rank `from_rank` holds in `tensors` (any strides and dtypes;
/// equal shapes on all ranks). Collective, blocking; one broadcast per tensor, of its bytes. `what`
/// names the broadcasts in errors. A tensor in memory that this process may not write is compared
/// instead. Returns the tensors of this rank that differ and could not be written.
std::vector<UnwrittenReplica> sync_replicas(ProcessGroup& group,
                                            const std::vector<at::Tensor>& tensors, int from_rank,
                                            std::string_view what);

}  // namespace tessera::internal
