#include "tessera/ddp/replica_sync.h"

namespace tessera {

void sync_replicas(ProcessGroup& group, const std::vector<at::Tensor>& tensors, int from_rank,
                   std::string_view what) {
  if (group.size() == 1) return;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const at::Tensor detached = tensor.detach();
    const bool is_bool = detached.scalar_type() == at::kBool;
    at::Tensor wire = is_bool ? detached.to(at::kByte) : detached.contiguous();
    group.broadcast(wire.reshape({-1}), from_rank, what)->wait();
    if (!wire.is_same(detached)) detached.copy_(wire);
  }
}

}  // namespace tessera
