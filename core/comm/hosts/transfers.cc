#include "tessera/core/comm/hosts/transfers.h"

#include <algorithm>
#include <utility>

#include "tessera/core/comm/groups/host_memory.h"

namespace tessera::internal::hosts {
namespace {

constexpr int64_t kSmallBytes = 512;

/// Starts the reductions of each level. See Note [Sums of two levels].
class TwoLevels {
 public:
  TwoLevels(const HostSubgroups& subgroups, const Collective& call)
      : subgroups_(subgroups),
        inside_{.reduce = call.reduce, .order = call.order, .tag = call.tag},
        across_{.reduce = call.reduce, .order = call.order, .tag = call.tag} {
    if (call.reduce != ReduceOp::kAvg) return;
    const at::ScalarType dtype = call.input.scalar_type();
    const bool is_half = dtype == at::kHalf || dtype == at::kBFloat16;
    Collective& dividing = is_half ? inside_ : across_;
    (is_half ? across_ : inside_).reduce = ReduceOp::kSum;
    dividing.divisor = call.divisor != 0.0 ? call.divisor : subgroups.layout.ranks();
  }

  /// `which` is the root or, for a reduce_scatter, the slice of `input` that goes to `output`.
  std::shared_ptr<Work> inside(Op op, const at::Tensor& output, const at::Tensor& input,
                               int which = -1) const {
    return start(*subgroups_.inside, inside_, op, output, input, which);
  }
  std::shared_ptr<Work> across(Op op, const at::Tensor& output, const at::Tensor& input,
                               int which = -1) const {
    return start(*subgroups_.across, across_, op, output, input, which);
  }

 private:
  static std::shared_ptr<Work> start(Member& member, Collective call, Op op,
                                     const at::Tensor& output, const at::Tensor& input, int which) {
    call.op = op;
    call.output = output;
    call.input = input;
    (op == Op::kReduce ? call.peer : call.slice) = which;
    return member.start(call);
  }

  const HostSubgroups& subgroups_;
  Collective inside_;
  Collective across_;
};

/// How a tensor is divided among the ranks of a host: each rank takes an equal part, and all ranks
/// take the rest, which has fewer elements than there are ranks.
struct Shares {
  Shares(const HostSubgroups& subgroups, const at::Tensor& tensor)
      : part(tensor.numel() / subgroups.locals()),
        bulk(part * subgroups.locals()),
        rest(tensor.numel() - bulk),
        own_begin(part * subgroups.local()) {}

  int64_t part;
  int64_t bulk;
  int64_t rest;
  int64_t own_begin;
};

/// Returns a copy of the input with the slices in another order: slices for ranks of the same
/// column are adjacent.
at::Tensor packed_by_column(const HostSubgroups& subgroups, const Collective& call,
                            const std::vector<int>& slices) {
  const int hosts = subgroups.hosts();
  const at::Tensor packed = subgroups.scratch(call.input.numel(), call.input.scalar_type());
  const auto bytes = static_cast<int64_t>(call.output.nbytes());
  for (int local = 0; local < subgroups.locals(); ++local) {
    for (int host = 0; host < hosts; ++host) {
      const int slice = slices[static_cast<size_t>(subgroups.layout.rank_of(host, local))];
      copy_bytes(data_of(packed) + (local * hosts + host) * bytes,
                 data_of(call.input) + slice * bytes, bytes);
    }
  }
  return packed;
}

CollectiveTask all_reduce(CollectiveContext context) {
  const auto& [subgroups, call, slices, is_first] = context;
  const TwoLevels two(subgroups, call);
  const at::Tensor whole = part_of(call.output, 0, call.output.numel());
  if (whole.numel() == 0) co_return;
  if (static_cast<int64_t>(whole.nbytes()) <= kSmallBytes) {
    co_await two.inside(Op::kAllReduce, whole, whole);
    const std::shared_ptr<Work> sum = two.across(Op::kAllReduce, whole, whole);
    co_yield CollectiveTask::Given();
    co_await sum;
    co_return;
  }
  const Shares shares(subgroups, whole);
  const at::Tensor bulk = part_of(whole, 0, shares.bulk);
  const at::Tensor own = part_of(whole, shares.own_begin, shares.part);
  co_await two.inside(Op::kReduceScatter, own, bulk, subgroups.local());
  const std::shared_ptr<Work> sum = two.across(Op::kAllReduce, own, own);
  std::shared_ptr<Work> rest_sum;
  if (shares.rest > 0) {
    const at::Tensor rest = part_of(whole, shares.bulk, shares.rest);
    co_await two.inside(Op::kAllReduce, rest, rest);
    rest_sum = two.across(Op::kAllReduce, rest, rest);
  }
  co_yield CollectiveTask::Given();
  co_await sum;
  co_await rest_sum;
  co_await is_first;
  co_await start_all_gather(*subgroups.last, bulk, own, call.tag);
}

CollectiveTask reduce(CollectiveContext context) {
  const auto& [subgroups, call, slices, is_first] = context;
  if (call.input.numel() == 0) co_return;
  const TwoLevels two(subgroups, call);
  const Shares shares(subgroups, call.input);
  const int root_host = subgroups.layout.host_of(call.peer);
  const int root_local = subgroups.layout.local_of(call.peer);
  // Sums go to scratch memory, because the caller's tensor must keep its values on all ranks but
  // the root.
  const at::Tensor sums = subgroups.scratch(shares.part + shares.rest, call.input.scalar_type());
  const at::Tensor own = part_of(sums, 0, shares.part);
  const at::Tensor rest = part_of(sums, shares.part, shares.rest);
  std::shared_ptr<Work> sum, rest_sum;
  if (shares.part > 0) {
    co_await two.inside(Op::kReduceScatter, own, part_of(call.input, 0, shares.bulk),
                        subgroups.local());
    sum = two.across(Op::kReduce, own, own, root_host);
  }
  if (shares.rest > 0) {
    copy_bytes(data_of(rest), data_of(part_of(call.input, shares.bulk, shares.rest)),
               static_cast<int64_t>(rest.nbytes()));
    co_await two.inside(Op::kAllReduce, rest, rest);
    if (subgroups.local() == root_local) rest_sum = two.across(Op::kReduce, rest, rest, root_host);
  }
  co_yield CollectiveTask::Given();
  co_await sum;
  co_await rest_sum;
  if (subgroups.host() != root_host) co_return;
  co_await is_first;
  const bool is_root = subgroups.rank() == call.peer;
  if (shares.part > 0) {
    const at::Tensor bulk = is_root ? part_of(call.output, 0, shares.bulk) : at::Tensor();
    const Collective gather{
        .op = Op::kGather, .output = bulk, .input = own, .peer = root_local, .tag = call.tag};
    co_await subgroups.last->start(gather);
  }
  if (is_root) {
    copy_bytes(data_of(part_of(call.output, shares.bulk, shares.rest)), data_of(rest),
               static_cast<int64_t>(rest.nbytes()));
  }
}

CollectiveTask reduce_scatter(CollectiveContext context) {
  const auto& [subgroups, call, slices, is_first] = context;
  const int64_t numel = call.output.numel();
  if (numel == 0) co_return;
  const TwoLevels two(subgroups, call);
  const int locals = subgroups.locals();
  const at::Tensor sums = subgroups.scratch(numel * subgroups.hosts(), call.output.scalar_type());
  if (std::is_sorted(slices.begin(), slices.end())) {  // each host's slices are adjacent
    for (int host = 0; host < subgroups.hosts(); ++host) {
      co_await two.inside(Op::kReduceScatter, part_of(sums, host * numel, numel),
                          part_of(call.input, host * locals * numel, locals * numel),
                          subgroups.local());
    }
  } else {  // otherwise brings each column's slices together first
    const at::Tensor packed = packed_by_column(subgroups, call, slices);
    co_await two.inside(Op::kReduceScatter, sums, packed, subgroups.local());
  }
  const std::shared_ptr<Work> sum =
      two.across(Op::kReduceScatter, part_of(call.output, 0, numel), sums, subgroups.host());
  co_yield CollectiveTask::Given();
  co_await sum;
}

std::shared_ptr<Work> give(Member& member, const at::Tensor& tensor, int root,
                           std::string_view tag) {
  return member.start(
      {.op = Op::kBroadcast, .output = tensor, .input = tensor, .peer = root, .tag = tag});
}

CollectiveTask all_gather(CollectiveContext context) {
  const auto& [subgroups, call, slices, is_first] = context;
  const int64_t numel = call.input.numel();
  if (numel == 0) co_return;
  const int hosts = subgroups.hosts();
  const int locals = subgroups.locals();
  const at::Tensor column = subgroups.scratch(numel * hosts, call.input.scalar_type());
  const std::shared_ptr<Work> come =
      start_all_gather(*subgroups.across, column, part_of(call.input, 0, numel), call.tag);
  co_yield CollectiveTask::Given();
  co_await come;
  co_await is_first;
  for (int host = 0; host < hosts; ++host) {
    const at::Tensor of_host = part_of(call.output, host * locals * numel, locals * numel);
    co_await start_all_gather(*subgroups.last, of_host, part_of(column, host * numel, numel),
                              call.tag);
  }
}

CollectiveTask broadcast(CollectiveContext context) {
  const auto& [subgroups, call, slices, is_first] = context;
  const at::Tensor tensor = part_of(call.output, 0, call.output.numel());
  if (tensor.numel() == 0) co_return;
  const int root_local = subgroups.layout.local_of(call.peer);
  std::shared_ptr<Work> come;
  if (subgroups.local() == root_local) {
    come = give(*subgroups.across, tensor, subgroups.layout.host_of(call.peer), call.tag);
  }
  co_yield CollectiveTask::Given();
  co_await come;
  co_await is_first;
  co_await give(*subgroups.last, tensor, root_local, call.tag);
}

/// Runs the collective on the link of all ranks, because it would gain nothing from two levels.
CollectiveTask move_flat(CollectiveContext context) {
  const std::shared_ptr<Work> work = context.subgroups.flat->start(context.call);
  co_yield CollectiveTask::Given();
  co_await work;
}

}  // namespace

CollectiveTask collective_task(CollectiveContext context) {
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
      return {};  // a barrier is over when all ranks have called
  }
}

}  // namespace tessera::internal::hosts
