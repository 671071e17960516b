#include "tessera/core/comm/mpi/steps.h"

#include <algorithm>
#include <utility>

#include "tessera/core/comm/groups/call_record.h"
#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/comm/kernels/reduce_kernels.h"

namespace tessera::internal::mpi {
namespace {

/// Copies the ranks' data from their envelopes to the output, or reduces it into the output. For a
/// call whose data is all inside the envelopes.
void take_payloads(const CollectiveContext& context) {
  const Collective& call = context.call;
  const OpTraits traits = traits_of(call.op);
  if (!traits.takes(context.rank, call.peer)) return;
  const auto payload_of = [&](int rank) { return context.round.of(rank).payload(); };
  char* output = data_of(call.output);
  if (call.op == Op::kBroadcast) {
    const auto bytes = static_cast<int64_t>(call.output.nbytes());
    return copy_bytes(output, payload_of(call.peer), bytes);
  }
  const auto bytes = static_cast<int64_t>(call.input.nbytes());
  if (!traits.reduces) {
    for (int rank = 0; rank < context.size; ++rank) {
      copy_bytes(output + rank * bytes, payload_of(rank), bytes);
    }
    return;
  }
  const bool scatters = call.op == Op::kReduceScatter;
  const int64_t offset = scatters ? call.slice * static_cast<int64_t>(call.output.nbytes()) : 0;
  std::vector<const char*> sources;
  for (int rank = 0; rank < context.size; ++rank) sources.push_back(payload_of(rank) + offset);
  kernels::reduce(call.output.scalar_type(), call.reduce, sources.data(), context.size, &output, 1,
                  call.output.numel(), kernels::Stores::kCached, call.divisor, call.order);
}

// The largest broadcast, in bytes, that the root sends whole to every rank. Parts of a larger one
// are passed on by other ranks.
constexpr int64_t kDirectBytes = int64_t{64} << 10;

/// Data that this rank sends to, and receives from, other ranks. Each step moves the next piece of
/// it to and from each rank.
class Flow {
 public:
  void send(int to, char* data, int64_t bytes) { sends_.push_back({to, data, bytes}); }
  void receive(int from, char* data, int64_t bytes) { receives_.push_back({from, data, bytes}); }

  /// Starts the next step and returns true. Returns false if no step is left.
  bool advance(Exchange& exchange) {
    bool goes_on = false;
    for (const Data& one : receives_) {
      if (at_ >= one.bytes) continue;
      exchange.receive(one.rank, one.data + at_, piece(one.bytes));
      goes_on = true;
    }
    for (const Data& one : sends_) {
      if (at_ >= one.bytes) continue;
      exchange.send(one.rank, one.data + at_, piece(one.bytes));
      goes_on = true;
    }
    at_ += Exchange::kUnaskedBytes;
    return goes_on;
  }

 private:
  struct Data {
    int rank;  // the destination or the source
    char* data;
    int64_t bytes;
  };

  int64_t piece(int64_t bytes) const { return std::min(Exchange::kUnaskedBytes, bytes - at_); }

  std::vector<Data> sends_;
  std::vector<Data> receives_;
  int64_t at_ = 0;  // number of bytes that earlier steps have taken from each Data
};

/// Moves data without reducing it. Two operations have two stages, and the first must complete
/// before the second begins. In a large broadcast, the root first sends each rank a different part;
/// then the ranks pass their parts on. In an all_to_all with counts, the ranks first exchange all
/// counts, so that all find the same mismatch; then they exchange the data.
class MoveSteps final : public Steps {
 public:
  explicit MoveSteps(const CollectiveContext& context)
      : context_(context), lag_(steps_under_way(context.size) - 1) {
    const Op op = context.call.op;
    if (op == Op::kScatter) {
      scatter();
    } else if (op == Op::kBroadcast) {
      broadcast();
    } else if (op == Op::kAllToAll) {
      all_to_all();
    } else {
      gather(op == Op::kGather ? context.call.peer : -1);
    }
  }

  bool advance(Exchange& exchange) override {
    if (stage_ == Stage::kFirst) {
      if (!first_.advance(exchange)) stage_ = Stage::kAwaited;
      return true;
    }
    const bool has_come = std::exchange(stage_, Stage::kThen) == Stage::kAwaited;
    if (has_come && !counts_.empty()) compare_counts();
    return then_.advance(exchange);
  }
  int64_t lag() const override { return stage_ == Stage::kAwaited ? 0 : lag_; }
  std::string problem() const override { return problem_; }

 private:
  enum class Stage : uint8_t { kFirst, kAwaited, kThen };

  void gather(int root) {
    const auto bytes = static_cast<int64_t>(context_.call.input.nbytes());
    char* const input = data_of(context_.call.input);
    char* const output = data_of(context_.call.output);
    const bool takes = root < 0 || root == context_.rank;
    if (takes) copy_bytes(output + context_.rank * bytes, input, bytes);
    for (int peer = 1; peer < context_.size; ++peer) {
      const int other = (context_.rank + peer) % context_.size;
      if (takes) then_.receive(other, output + other * bytes, bytes);
      if (root < 0 || root == other) then_.send(other, input, bytes);
    }
  }

  void scatter() {
    const auto bytes = static_cast<int64_t>(context_.call.output.nbytes());
    char* const output = data_of(context_.call.output);
    const int root = context_.call.peer;
    if (root != context_.rank) return then_.receive(root, output, bytes);
    char* const input = data_of(context_.call.input);
    for (int rank = 0; rank < context_.size; ++rank) {
      char* const slice = input + context_.round.of(rank).record.slice * bytes;
      if (rank != root) then_.send(rank, slice, bytes);
      if (rank == root) copy_bytes(output, slice, bytes);
    }
  }

  void broadcast() {
    const auto bytes = static_cast<int64_t>(context_.call.output.nbytes());
    char* const data = data_of(context_.call.output);
    const int root = context_.call.peer;
    const int own = context_.rank;
    const bool is_direct = bytes <= kDirectBytes || context_.size == 2;
    const int64_t share = is_direct ? bytes : (bytes + context_.size - 1) / context_.size;
    const auto begin = [&](int rank) { return is_direct ? 0 : std::min(rank * share, bytes); };
    const auto length = [&](int rank) { return std::min(share, bytes - begin(rank)); };
    Flow& parts = is_direct ? then_ : first_;
    for (int rank = 0; rank < context_.size; ++rank) {
      if (rank == root) continue;
      if (own == root) parts.send(rank, data + begin(rank), length(rank));
      if (own == rank) parts.receive(root, data + begin(own), length(own));
    }
    if (is_direct) return;
    stage_ = Stage::kFirst;
    for (int rank = 0; rank < context_.size; ++rank) {
      if (rank == own) continue;
      if (own != root) then_.receive(rank, data + begin(rank), length(rank));
      if (rank != root) then_.send(rank, data + begin(own), length(own));
    }
  }

  void all_to_all() {
    const Collective& call = context_.call;
    const auto ranks = static_cast<size_t>(context_.size);
    if (call.input_counts.empty()) {
      return move(std::vector(ranks, call.input.numel() / context_.size),
                  std::vector(ranks, call.output.numel() / context_.size));
    }
    stage_ = Stage::kFirst;
    counts_.resize(2 * ranks * ranks);
    const auto bytes = static_cast<int64_t>(2 * ranks * sizeof(int64_t));
    const auto place = [&](int rank) {
      return reinterpret_cast<char*>(counts_.data()) + rank * bytes;
    };
    const auto own = counts_.begin() + static_cast<int64_t>(2 * ranks) * context_.rank;
    std::copy(call.output_counts.begin(), call.output_counts.end(),
              std::copy(call.input_counts.begin(), call.input_counts.end(), own));
    for (int rank = 0; rank < context_.size; ++rank) {
      if (rank == context_.rank) continue;
      first_.receive(rank, place(rank), bytes);
      first_.send(rank, place(context_.rank), bytes);
    }
  }

  /// Compares the counts of all ranks. If they match, prepares the transfer of the data.
  void compare_counts() {
    const int ranks = context_.size;
    const auto at = [&](int rank, int index) {
      return counts_[static_cast<size_t>(rank * 2 * ranks + index)];
    };
    for (int giver = 0; giver < ranks; ++giver) {
      for (int taker = 0; taker < ranks; ++taker) {
        const int64_t given = at(giver, taker);
        const int64_t expected = at(taker, ranks + giver);
        if (given == expected) continue;
        problem_ = count_mismatch(context_.link.name_of(giver), given, context_.link.name_of(taker),
                                  expected, context_.call.tag);
        return;
      }
    }
    move(context_.call.input_counts, context_.call.output_counts);
  }

  void move(const std::vector<int64_t>& given, const std::vector<int64_t>& taken) {
    const int64_t element = context_.call.input.element_size();
    char* from = data_of(context_.call.input);
    char* to = data_of(context_.call.output);
    for (int rank = 0; rank < context_.size; ++rank) {
      const int64_t gives = given[static_cast<size_t>(rank)] * element;
      const int64_t takes = taken[static_cast<size_t>(rank)] * element;
      if (rank == context_.rank) {
        copy_bytes(to, from, gives);
      } else {
        then_.receive(rank, to, takes);
        then_.send(rank, from, gives);
      }
      from += gives;
      to += takes;
    }
  }

  const CollectiveContext context_;
  const int64_t lag_;
  // For each rank, in rank order: the count that it sends to each rank, then the count that it
  // receives from each rank.
  std::vector<int64_t> counts_;
  std::string problem_;
  Flow first_;
  Flow then_;
  Stage stage_ = Stage::kThen;
};

}  // namespace

int64_t steps_under_way(int ranks) {
  return std::clamp(kHeldBytes / (Exchange::kUnaskedBytes * ranks), kLeastSteps, kMostSteps);
}

int64_t payload_bytes(const Collective& call) {
  const OpTraits traits = traits_of(call.op);
  const bool has_one =
      traits.reduces || traits.tensors == OpTraits::Tensors::kGather || call.op == Op::kBroadcast;
  if (!has_one) return -1;
  const auto bytes = static_cast<int64_t>(call.input.nbytes());
  return Envelope::holds(bytes) ? bytes : -1;
}

std::unique_ptr<Steps> make_steps(const CollectiveContext& context) {
  const int64_t payload = payload_bytes(context.call);
  const OpTraits traits = traits_of(context.call.op);
  if (payload > 0) take_payloads(context);
  if (payload >= 0 || traits.tensors == OpTraits::Tensors::kNone) return nullptr;
  if (traits.reduces) return make_reduce_steps(context);
  return std::make_unique<MoveSteps>(context);
}

}  // namespace tessera::internal::mpi
