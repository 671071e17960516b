#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/hosts/transfers.h"

namespace tessera::internal::hosts {
namespace {

/// `column`: the inputs of the own column, by host. Brings all columns together.
void share_gathered(const Levels& levels, const at::Tensor& output, const at::Tensor& column,
                    std::string_view tag) {
  const int hosts = levels.hosts();
  const int locals = levels.locals();
  const int64_t numel = column.numel() / hosts;
  if (levels.layout.is_contiguous()) {
    for (int host = 0; host < hosts; ++host) {
      levels.inside_last
          ->all_gather(part_of(output, host * locals * numel, locals * numel),
                       part_of(column, host * numel, numel), tag)
          ->wait();
    }
    return;
  }
  const at::Tensor all = levels.scratch(output.numel(), output.scalar_type());
  levels.inside_last->all_gather(all, column, tag)->wait();
  const auto bytes = numel * static_cast<int64_t>(output.element_size());
  for (int local = 0; local < locals; ++local) {
    for (int host = 0; host < hosts; ++host) {
      copy_bytes(data_of(output) + levels.layout.rank_of(host, local) * bytes,
                 data_of(all) + (local * hosts + host) * bytes, bytes);
    }
  }
}

}  // namespace

Member::Last all_gather(const Levels& levels, const Collective& call, const std::vector<int>&) {
  const int64_t numel = call.input.numel();
  if (numel == 0) return nullptr;
  const at::Tensor column = levels.scratch(numel * levels.hosts(), call.input.scalar_type());
  const auto work = levels.across->all_gather(column, part_of(call.input, 0, numel), call.tag);
  return [&levels, work, column, output = part_of(call.output, 0, call.output.numel()),
          tag = std::string(call.tag)] {
    work->wait();
    share_gathered(levels, output, column, tag);
  };
}

Member::Last broadcast(const Levels& levels, const Collective& call, const std::vector<int>&) {
  const at::Tensor tensor = part_of(call.output, 0, call.output.numel());
  if (tensor.numel() == 0) return nullptr;
  const int root_local = levels.layout.local_of(call.peer);
  std::shared_ptr<Work> work;
  if (levels.local() == root_local) {
    work = levels.across->broadcast(tensor, levels.layout.host_of(call.peer), call.tag);
  }
  return [&levels, work, tensor, root_local, tag = std::string(call.tag)] {
    if (work != nullptr) work->wait();
    levels.inside_last->broadcast(tensor, root_local, tag)->wait();
  };
}

Member::Last barrier(const Levels&, const Collective&, const std::vector<int>&) {
  return nullptr;  // Note [Calls of two levels]
}

Member::Last move_flat(const Levels& levels, const Collective& call, const std::vector<int>&) {
  return [work = levels.moves->run(call)] { work->wait(); };
}

Transfer transfer_of(Op op) {
  switch (op) {
    case Op::kAllReduce:
      return all_reduce;
    case Op::kReduce:
      return reduce;
    case Op::kReduceScatter:
      return reduce_scatter;
    case Op::kAllGather:
      return all_gather;
    case Op::kBroadcast:
      return broadcast;
    case Op::kBarrier:
      return barrier;
    case Op::kGather:
    case Op::kScatter:
    case Op::kAllToAll:
      return move_flat;
    default:
      return nullptr;
  }
}

}  // namespace tessera::internal::hosts
