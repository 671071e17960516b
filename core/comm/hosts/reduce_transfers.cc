#include <utility>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/hosts/transfers.h"

namespace tessera::internal::hosts {
namespace {

/// What each level does of a reduction: Note [Sums of two levels].
class TwoLevels {
 public:
  TwoLevels(const Levels& levels, const Collective& call)
      : levels_(levels),
        inside_{.reduce = call.reduce, .order = call.order, .tag = call.tag},
        across_{.reduce = call.reduce, .order = call.order, .tag = call.tag} {
    if (call.reduce != ReduceOp::kAvg) return;
    const at::ScalarType dtype = call.input.scalar_type();
    const bool is_half = dtype == at::kHalf || dtype == at::kBFloat16;
    Collective& dividing = is_half ? inside_ : across_;
    (is_half ? across_ : inside_).reduce = ReduceOp::kSum;
    dividing.divisor = call.divisor != 0.0 ? call.divisor : levels.layout.ranks();
  }

  /// Blocks; in place, all ranks of the host get the sum.
  void all_reduce_inside(const at::Tensor& tensor) const {
    Collective call = inside_;
    call.op = Op::kAllReduce;
    call.input = call.output = tensor;
    levels_.inside->check_and_run(call)->wait();
  }

  /// Blocks; `slice`: which one of `input` comes to `output`.
  void scatter_inside(const at::Tensor& output, const at::Tensor& input, int slice) const {
    Collective call = inside_;
    call.op = Op::kReduceScatter;
    call.input = input;
    call.output = output;
    call.slice = slice;
    levels_.inside->check_and_run(call)->wait();
  }

  /// These return at once.
  std::shared_ptr<Work> all_reduce_across(const at::Tensor& tensor) const {
    Collective call = across_;
    call.op = Op::kAllReduce;
    call.input = call.output = tensor;
    return levels_.across->check_and_run(call);
  }

  std::shared_ptr<Work> reduce_across(const at::Tensor& tensor, int root_host) const {
    Collective call = across_;
    call.op = Op::kReduce;
    call.input = call.output = tensor;
    call.peer = root_host;
    return levels_.across->check_and_run(call);
  }

  std::shared_ptr<Work> scatter_across(const at::Tensor& output, const at::Tensor& input) const {
    Collective call = across_;
    call.op = Op::kReduceScatter;
    call.input = input;
    call.output = output;
    call.slice = levels_.host();
    return levels_.across->check_and_run(call);
  }

 private:
  const Levels& levels_;
  Collective inside_;
  Collective across_;
};

/// A tensor as the ranks of a host share it out: a part for each, and fewer elements than ranks
/// that all of them take.
struct Shares {
  Shares(const Levels& levels, const at::Tensor& tensor)
      : part(tensor.numel() / levels.locals()),
        bulk(part * levels.locals()),
        rest(tensor.numel() - bulk),
        own_begin(part * levels.local()) {}

  int64_t part;
  int64_t bulk;
  int64_t rest;
  int64_t own_begin;
};

/// If each run of as many slices as a host has ranks has one for each column: the own column's
/// slice in each run; else empty.
std::vector<int> slice_in_each_run(const Levels& levels, const std::vector<int>& slices) {
  const auto locals = static_cast<size_t>(levels.locals());
  std::vector<int> column_of_slice(slices.size());
  for (size_t rank = 0; rank < slices.size(); ++rank) {
    column_of_slice[static_cast<size_t>(slices[rank])] =
        levels.layout.local_of(static_cast<int>(rank));
  }
  std::vector<int> own;
  for (size_t begin = 0; begin < slices.size(); begin += locals) {
    std::vector<bool> seen(locals, false);
    for (size_t slice = begin; slice < begin + locals; ++slice) {
      const int column = column_of_slice[slice];
      if (seen[static_cast<size_t>(column)]) return {};
      seen[static_cast<size_t>(column)] = true;
      if (column == levels.local()) own.push_back(static_cast<int>(slice));
    }
  }
  return own;
}

/// Which host asks for a slice.
int host_of_slice(const Levels& levels, const std::vector<int>& slices, int slice) {
  for (size_t rank = 0; rank < slices.size(); ++rank) {
    if (slices[rank] == slice) return levels.layout.host_of(static_cast<int>(rank));
  }
  return -1;
}

/// Sums, inside the host, the slices that the own column asks for, into `sums` by host.
void sum_for_column(const Levels& levels, const Collective& call, const std::vector<int>& slices,
                    const TwoLevels& two, const at::Tensor& sums) {
  const int64_t numel = call.output.numel();
  const int locals = levels.locals();
  const std::vector<int> runs = slice_in_each_run(levels, slices);
  for (size_t run = 0; run < runs.size(); ++run) {
    const int first = static_cast<int>(run) * locals;
    two.scatter_inside(part_of(sums, host_of_slice(levels, slices, runs[run]) * numel, numel),
                       part_of(call.input, first * numel, locals * numel), runs[run] - first);
  }
  if (!runs.empty()) return;
  // In any other order they are brought together first.
  const int hosts = levels.hosts();
  const at::Tensor packed = levels.scratch(call.input.numel(), call.input.scalar_type());
  const auto bytes = static_cast<int64_t>(call.output.nbytes());
  for (int local = 0; local < locals; ++local) {
    for (int host = 0; host < hosts; ++host) {
      const int slice = slices[static_cast<size_t>(levels.layout.rank_of(host, local))];
      copy_bytes(data_of(packed) + (local * hosts + host) * bytes,
                 data_of(call.input) + slice * bytes, bytes);
    }
  }
  two.scatter_inside(sums, packed, levels.local());
}

}  // namespace

Member::Last all_reduce(const Levels& levels, const Collective& call, const std::vector<int>&) {
  const TwoLevels two(levels, call);
  const at::Tensor whole = part_of(call.output, 0, call.output.numel());
  if (static_cast<int64_t>(whole.nbytes()) <= kSmallBytes) {
    if (whole.numel() == 0) return nullptr;
    two.all_reduce_inside(whole);
    return [work = two.all_reduce_across(whole)] { work->wait(); };
  }
  const Shares shares(levels, whole);
  const at::Tensor bulk = part_of(whole, 0, shares.bulk);
  const at::Tensor own = part_of(whole, shares.own_begin, shares.part);
  two.scatter_inside(own, bulk, levels.local());
  const auto work = two.all_reduce_across(own);
  std::shared_ptr<Work> rest_work;
  if (shares.rest > 0) {
    const at::Tensor rest = part_of(whole, shares.bulk, shares.rest);
    two.all_reduce_inside(rest);
    rest_work = two.all_reduce_across(rest);
  }
  return [&levels, bulk, own, work, rest_work, tag = std::string(call.tag)] {
    work->wait();
    if (rest_work != nullptr) rest_work->wait();
    levels.inside_last->all_gather(bulk, own, tag)->wait();
  };
}

Member::Last reduce(const Levels& levels, const Collective& call, const std::vector<int>&) {
  if (call.input.numel() == 0) return nullptr;
  const TwoLevels two(levels, call);
  const Shares shares(levels, call.input);
  const int root_host = levels.layout.host_of(call.peer);
  const int root_local = levels.layout.local_of(call.peer);
  // The caller's tensor stays as it is on all ranks but the root.
  const at::Tensor sums = levels.scratch(shares.part + shares.rest, call.input.scalar_type());
  const at::Tensor own = part_of(sums, 0, shares.part);
  const at::Tensor rest = part_of(sums, shares.part, shares.rest);
  std::vector<std::shared_ptr<Work>> works;
  if (shares.part > 0) {
    two.scatter_inside(own, part_of(call.input, 0, shares.bulk), levels.local());
    works.push_back(two.reduce_across(own, root_host));
  }
  if (shares.rest > 0) {
    copy_bytes(data_of(rest), data_of(part_of(call.input, shares.bulk, shares.rest)),
               static_cast<int64_t>(rest.nbytes()));
    two.all_reduce_inside(rest);
    if (levels.local() == root_local) works.push_back(two.reduce_across(rest, root_host));
  }
  const bool is_root = levels.rank == call.peer;
  const at::Tensor whole = part_of(call.output, 0, call.output.numel());
  return [&levels, works, sums, own, rest, shares, whole, is_root, root_host, root_local,
          tag = std::string(call.tag)] {
    for (const auto& work : works) work->wait();
    if (levels.host() != root_host) return;
    if (shares.part > 0) {
      const at::Tensor bulk = is_root ? part_of(whole, 0, shares.bulk) : at::Tensor();
      levels.inside_last->gather(bulk, own, root_local, tag)->wait();
    }
    if (is_root) {
      copy_bytes(data_of(part_of(whole, shares.bulk, shares.rest)), data_of(rest),
                 static_cast<int64_t>(rest.nbytes()));
    }
  };
}

Member::Last reduce_scatter(const Levels& levels, const Collective& call,
                            const std::vector<int>& slices) {
  const int64_t numel = call.output.numel();
  if (numel == 0) return nullptr;
  const TwoLevels two(levels, call);
  const at::Tensor sums = levels.scratch(numel * levels.hosts(), call.output.scalar_type());
  sum_for_column(levels, call, slices, two, sums);
  const auto work = two.scatter_across(part_of(call.output, 0, numel), sums);
  return [work, sums] { work->wait(); };
}

}  // namespace tessera::internal::hosts
