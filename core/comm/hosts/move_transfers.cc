#include <utility>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/hosts/transfers.h"

namespace tessera::internal::hosts {
namespace {

std::shared_ptr<Work> give(Member& member, const at::Tensor& tensor, int root,
                           std::string_view tag) {
  return member.start(
      {.op = Op::kBroadcast, .output = tensor, .input = tensor, .peer = root, .tag = tag});
}

}  // namespace

Steps all_gather(StepContext context) {
  const auto& [levels, call, slices, is_first] = context;
  const int64_t numel = call.input.numel();
  if (numel == 0) co_return;
  const int hosts = levels.hosts();
  const int locals = levels.locals();
  const at::Tensor column = levels.scratch(numel * hosts, call.input.scalar_type());
  const std::shared_ptr<Work> come =
      start_all_gather(*levels.across, column, part_of(call.input, 0, numel), call.tag);
  co_yield Steps::Given();
  co_await come;
  co_await is_first;
  for (int host = 0; host < hosts; ++host) {
    const at::Tensor of_host = part_of(call.output, host * locals * numel, locals * numel);
    co_await start_all_gather(*levels.last, of_host, part_of(column, host * numel, numel),
                              call.tag);
  }
}

Steps broadcast(StepContext context) {
  const auto& [levels, call, slices, is_first] = context;
  const at::Tensor tensor = part_of(call.output, 0, call.output.numel());
  if (tensor.numel() == 0) co_return;
  const int root_local = levels.layout.local_of(call.peer);
  std::shared_ptr<Work> come;
  if (levels.local() == root_local) {
    come = give(*levels.across, tensor, levels.layout.host_of(call.peer), call.tag);
  }
  co_yield Steps::Given();
  co_await come;
  co_await is_first;
  co_await give(*levels.last, tensor, root_local, call.tag);
}

Steps move_flat(StepContext context) {
  const std::shared_ptr<Work> work = context.levels.moves->start(context.call);
  co_yield Steps::Given();
  co_await work;
}

Steps steps_of(StepContext context) {
  switch (context.call.op) {
    case Op::kAllReduce:
      return all_reduce(std::move(context));
    case Op::kReduce:
      return reduce(std::move(context));
    case Op::kReduceScatter:
      return reduce_scatter(std::move(context));
    case Op::kAllGather:
      return all_gather(std::move(context));
    case Op::kBroadcast:
      return broadcast(std::move(context));
    case Op::kGather:
    case Op::kScatter:
    case Op::kAllToAll:
      return move_flat(std::move(context));
    default:
      return {};  // a barrier: all ranks have called
  }
}

}  // namespace tessera::internal::hosts
