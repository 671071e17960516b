#include "tessera/ddp/replica_sync.h"

namespace tessera::internal {
namespace {

/// The part of `tensor` that has every place in which `expanded`, of its sizes, has elements once.
at::Tensor once(at::Tensor tensor, const at::Tensor& expanded) {
  for (int64_t d = 0; d < expanded.dim(); ++d) {
    if (expanded.stride(d) == 0 && expanded.size(d) > 1) tensor = tensor.narrow(d, 0, 1);
  }
  return tensor;
}

}  // namespace

void overwrite(const at::Tensor& tensor, const at::Tensor& values) {
  // It has its own version counter, so graphs that were made before stay valid.
  const at::Tensor detached = tensor.data();
  once(detached, detached).copy_(once(values, detached));
}

void sync_replicas(ProcessGroup& group, const std::vector<at::Tensor>& tensors, int from_rank,
                   std::string_view what) {
  if (group.size() == 1) return;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const at::Tensor detached = tensor.data();  // as in overwrite()
    const at::Tensor values = detached.contiguous();
    // Bytes, because groups do not know every dtype that a buffer may have.
    group.broadcast(values.reshape({-1}).view(at::kByte), from_rank, what)->wait();
    if (!values.is_same(detached)) overwrite(tensor, values);
  }
}

}  // namespace tessera::internal
