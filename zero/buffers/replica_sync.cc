#include "tessera/zero/buffers/replica_sync.h"

#include <cstdint>
#include <utility>

#include <ATen/ops/zeros.h>

namespace tessera::internal {
namespace {

/// Narrows `tensor` to size 1 in each dimension in which `expanded`, of the same sizes, repeats one
/// element (stride 0).
at::Tensor once(at::Tensor tensor, const at::Tensor& expanded) {
  for (int64_t d = 0; d < expanded.dim(); ++d) {
    if (expanded.stride(d) == 0 && expanded.size(d) > 1) tensor = tensor.narrow(d, 0, 1);
  }
  return tensor;
}

}  // namespace

void overwrite(const at::Tensor& tensor, const at::Tensor& values) {
  // data() has its own version counter, so graphs that were made before stay valid.
  const at::Tensor detached = tensor.data();
  once(detached, detached).copy_(once(values, detached));
}

std::vector<bool> read_only_on_any_rank(ProcessGroup& group, const std::vector<at::Tensor>& tensors,
                                        const ReadOnlyMemory& read_only, std::string_view what) {
  const at::Tensor flags = at::zeros({static_cast<int64_t>(tensors.size())}, at::kByte);
  auto* const mine = flags.mutable_data_ptr<uint8_t>();
  for (size_t i = 0; i < tensors.size(); ++i) mine[i] = read_only.holds(tensors[i]) ? 1 : 0;
  const at::Tensor on_device = flags.to(group.device());
  group.all_reduce(on_device, ReduceOp::kMax, what)->wait();
  const at::Tensor all = on_device.cpu();
  const auto* const of_any = all.const_data_ptr<uint8_t>();
  return std::vector<bool>(of_any, of_any + tensors.size());
}

std::vector<UnwrittenReplica> sync_replicas(ProcessGroup& group,
                                            const std::vector<at::Tensor>& tensors, int from_rank,
                                            std::string_view what) {
  std::vector<UnwrittenReplica> unwritten;
  if (group.size() == 1) return unwritten;
  const ReadOnlyMemory read_only;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (tensor.numel() == 0) continue;
    const at::Tensor detached = tensor.data();  // as in overwrite()
    const bool is_source = group.rank() == from_rank;
    const bool may_write = is_source || !read_only.holds(detached);
    const at::Tensor values =
        may_write ? detached.contiguous() : detached.clone(at::MemoryFormat::Contiguous);
    // Sends bytes, because process groups do not support every dtype that a buffer may have.
    group.broadcast(values.reshape({-1}).view(at::kByte), from_rank, what)->wait();
    if (is_source) continue;
    if (!may_write) {
      std::string problem = read_only.problem(detached, values);
      if (!problem.empty()) unwritten.push_back({i, std::move(problem)});
    } else if (!values.is_same(detached)) {
      overwrite(tensor, values);
    }
  }
  return unwritten;
}

}  // namespace tessera::internal
