#include <algorithm>
#include <numeric>

#include "tessera/core/comm/groups/call_mismatch.h"
#include "tessera/core/comm/mpi/transfer.h"

namespace tessera::internal::mpi {
namespace {

constexpr int64_t kDirectBytes = int64_t{64} << 10;  // a root sends so much to everyone itself

/// all_gather, gather and scatter: one step of whole slices.
class MoveTransfer final : public Transfer {
 public:
  explicit MoveTransfer(const TransferContext& context) : context_(context) {}

  bool advance(Exchange& exchange) override {
    if (is_begun_) return false;
    is_begun_ = true;
    const Collective& call = context_.call;
    if (call.op == Op::kScatter) {
      scatter(exchange);
    } else {
      gather(exchange, call.op == Op::kGather ? call.peer : -1);
    }
    return true;
  }

 private:
  void gather(Exchange& exchange, int root) {
    const auto bytes = static_cast<int64_t>(context_.call.input.nbytes());
    char* const input = data_of(context_.call.input);
    char* const output = data_of(context_.call.output);
    const bool takes = root < 0 || root == context_.rank;
    if (takes) copy_bytes(output + context_.rank * bytes, input, bytes);
    for (int peer = 1; peer < context_.size; ++peer) {
      const int from = (context_.rank + peer) % context_.size;
      if (takes) exchange.receive(from, output + from * bytes, bytes);
    }
    for (int peer = 1; peer < context_.size; ++peer) {
      const int to = (context_.rank + peer) % context_.size;
      if (root < 0 || root == to) exchange.send(to, input, bytes);
    }
  }

  void scatter(Exchange& exchange) {
    const auto bytes = static_cast<int64_t>(context_.call.output.nbytes());
    char* const output = data_of(context_.call.output);
    const int root = context_.call.peer;
    if (root != context_.rank) return exchange.receive(root, output, bytes);
    const char* const input = data_of(context_.call.input);
    for (int rank = 0; rank < context_.size; ++rank) {
      const char* const slice = input + context_.round.of(rank).slice * bytes;
      if (rank != root) exchange.send(rank, slice, bytes);
      if (rank == root) copy_bytes(output, slice, bytes);
    }
  }

  const TransferContext context_;
  bool is_begun_ = false;
};

/// The root gives each rank a part, which passes it on; small tensors it gives to everyone itself.
class BroadcastTransfer final : public Transfer {
 public:
  explicit BroadcastTransfer(const TransferContext& context)
      : context_(context),
        data_(data_of(context.call.output)),
        bytes_(static_cast<int64_t>(context.call.output.nbytes())) {}

  bool advance(Exchange& exchange) override {
    const bool is_root = context_.rank == context_.call.peer;
    const bool is_direct = bytes_ <= kDirectBytes || context_.size == 2;
    switch (step_++) {
      case 0:
        give_parts(exchange, is_root, is_direct);
        return true;
      case 1:
        if (is_direct) return false;
        pass_on(exchange, is_root);
        return true;
      default:
        return false;
    }
  }

 private:
  /// Where a rank's part begins.
  int64_t begin(int rank) const {
    const int64_t share = (bytes_ + context_.size - 1) / context_.size;
    return std::min(rank * share, bytes_);
  }
  int64_t length(int rank) const { return begin(rank + 1) - begin(rank); }

  void give_parts(Exchange& exchange, bool is_root, bool is_direct) {
    const int root = context_.call.peer;
    if (!is_root) {
      const int64_t from = is_direct ? 0 : begin(context_.rank);
      exchange.receive(root, data_ + from, is_direct ? bytes_ : length(context_.rank));
      return;
    }
    for (int rank = 0; rank < context_.size; ++rank) {
      if (rank == root) continue;
      exchange.send(rank, data_ + (is_direct ? 0 : begin(rank)), is_direct ? bytes_ : length(rank));
    }
  }

  void pass_on(Exchange& exchange, bool is_root) {
    const int root = context_.call.peer;
    for (int rank = 0; rank < context_.size; ++rank) {
      if (rank == context_.rank) continue;
      if (!is_root) exchange.receive(rank, data_ + begin(rank), length(rank));
      if (rank != root) exchange.send(rank, data_ + begin(context_.rank), length(context_.rank));
    }
  }

  const TransferContext context_;
  char* const data_;
  const int64_t bytes_;
  int step_ = 0;
};

/// With counts, all ranks see all counts first and find the same mismatch.
class AllToAllTransfer final : public Transfer {
 public:
  explicit AllToAllTransfer(const TransferContext& context)
      : context_(context),
        has_counts_(!context.call.input_counts.empty()),
        given_(context.call.input_counts),
        taken_(context.call.output_counts) {
    if (has_counts_) return;
    const auto ranks = static_cast<size_t>(context.size);
    given_.assign(ranks, context.call.input.numel() / context.size);
    taken_.assign(ranks, context.call.output.numel() / context.size);
  }

  bool advance(Exchange& exchange) override {
    switch (step_++) {
      case 0:
        if (has_counts_) {
          tell_counts(exchange);
          return true;
        }
        ++step_;
        move(exchange);
        return true;
      case 1:
        compare_counts();
        if (!problem_.empty()) return false;
        move(exchange);
        return true;
      default:
        return false;
    }
  }

  std::string problem() const override { return problem_; }

 private:
  void tell_counts(Exchange& exchange) {
    own_ = given_;
    own_.insert(own_.end(), taken_.begin(), taken_.end());
    all_.resize(own_.size() * static_cast<size_t>(context_.size));
    const auto bytes = static_cast<int64_t>(own_.size() * sizeof(int64_t));
    for (int rank = 0; rank < context_.size; ++rank) {
      auto* const place = all_.data() + static_cast<size_t>(rank) * own_.size();
      if (rank == context_.rank) {
        std::copy(own_.begin(), own_.end(), place);
        continue;
      }
      exchange.receive(rank, reinterpret_cast<char*>(place), bytes);
      exchange.send(rank, reinterpret_cast<const char*>(own_.data()), bytes);
    }
  }

  void compare_counts() {
    const int ranks = context_.size;
    const auto at = [&](int rank, int index) { return all_[(rank * 2 * ranks) + index]; };
    for (int giver = 0; giver < ranks && problem_.empty(); ++giver) {
      for (int taker = 0; taker < ranks && problem_.empty(); ++taker) {
        const int64_t given = at(giver, taker);
        const int64_t expected = at(taker, ranks + giver);
        if (given == expected) continue;
        problem_ =
            count_mismatch(name_of(giver, context_.world_ranks), given,
                           name_of(taker, context_.world_ranks), expected, context_.call.tag);
      }
    }
  }

  void move(Exchange& exchange) {
    const int64_t element = context_.call.input.element_size();
    const char* from = data_of(context_.call.input);
    char* to = data_of(context_.call.output);
    const char* own = nullptr;
    char* own_place = nullptr;
    for (int rank = 0; rank < context_.size; ++rank) {
      const auto index = static_cast<size_t>(rank);
      if (rank == context_.rank) {
        own = from;
        own_place = to;
      } else {
        exchange.receive(rank, to, taken_[index] * element);
        exchange.send(rank, from, given_[index] * element);
      }
      from += given_[index] * element;
      to += taken_[index] * element;
    }
    copy_bytes(own_place, own, given_[static_cast<size_t>(context_.rank)] * element);
  }

  const TransferContext context_;
  const bool has_counts_;
  std::vector<int64_t> given_;
  std::vector<int64_t> taken_;
  std::vector<int64_t> own_;
  std::vector<int64_t> all_;
  std::string problem_;
  int step_ = 0;
};

}  // namespace

std::unique_ptr<Transfer> make_move_transfer(const TransferContext& context) {
  return std::make_unique<MoveTransfer>(context);
}

std::unique_ptr<Transfer> make_broadcast_transfer(const TransferContext& context) {
  return std::make_unique<BroadcastTransfer>(context);
}

std::unique_ptr<Transfer> make_all_to_all_transfer(const TransferContext& context) {
  return std::make_unique<AllToAllTransfer>(context);
}

}  // namespace tessera::internal::mpi
