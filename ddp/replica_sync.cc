#include "tessera/ddp/replica_sync.h"

namespace tessera {

void sync_replicas(ProcessGroup& group, const std::vector<at::Tensor>& tensors, int from_rank,
                   std::string_view what) {
  if (group.size() == 1) return;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const at::Tensor detached = tensor.detach();
    const at::Tensor values = detached.contiguous();
    // Bytes, because groups do not know every dtype that a buffer may have.
    group.broadcast(values.reshape({-1}).view(at::kByte), from_rank, what)->wait();
    if (!values.is_same(detached)) detached.copy_(values);
  }
}

}  // namespace tessera
