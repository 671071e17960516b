#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/layout/read_only_memory.h"
#include "tessera/process_group.h"

namespace tessera::internal {

/// Makes the elements of `tensor` those of `values`, of the same sizes, without counting as a
/// change for graphs that saved it. Where elements of `tensor` share memory (expand()), the first
/// counts. Grad mode must be off. Local.
void overwrite(const at::Tensor& tensor, const at::Tensor& values);

/// For each tensor of all ranks whether any of them may only read its own: whether it lies in
/// memory that `read_only` holds there. Equally many on all ranks, and one at least. Collective,
/// blocking: one all_reduce, which `what` names.
std::vector<bool> read_only_on_any_rank(ProcessGroup& group, const std::vector<at::Tensor>& tensors,
                                        const ReadOnlyMemory& read_only, std::string_view what);

/// A tensor that could not take another rank's values.
struct UnwrittenReplica {
  size_t index;         ///< of the tensors that were given
  std::string problem;  ///< "lies in memory that this process may not write ..."
};

/// Gives every rank the values that rank `from_rank` holds in `tensors` (any strides and dtypes;
/// equal shapes on all ranks). Collective, blocking; one broadcast per tensor, of its bytes. `what`
/// names them in errors. A tensor in memory that this process may not write is compared instead;
/// returns those that have other values, on this rank.
std::vector<UnwrittenReplica> sync_replicas(ProcessGroup& group,
                                            const std::vector<at::Tensor>& tensors, int from_rank,
                                            std::string_view what);

}  // namespace tessera::internal
