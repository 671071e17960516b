#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/comm/groups/call_record.h"
#include "tessera/core/comm/mpi/steps.h"

namespace tessera::internal::mpi {
namespace {

constexpr int64_t kDirectBytes = int64_t{64} << 10;  // a root sends so much to everyone itself

/// Data that goes to and comes from other ranks, a piece of each in a step.
class Flow {
 public:
  /// `size` of the group.
  explicit Flow(int size) : lag_(steps_under_way(size) - 1) {}

  void send(int to, char* data, int64_t bytes) { sends_.push_back({to, data, bytes}); }
  void receive(int from, char* data, int64_t bytes) { receives_.push_back({from, data, bytes}); }

  /// Starts the next step; false if there is none.
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
  int64_t lag() const { return lag_; }

 private:
  struct Data {
    int rank;  // that it goes to or comes from
    char* data;
    int64_t bytes;
  };

  int64_t piece(int64_t bytes) const { return std::min(Exchange::kUnaskedBytes, bytes - at_); }

  const int64_t lag_;
  std::vector<Data> sends_;
  std::vector<Data> receives_;
  int64_t at_ = 0;  // of each
};

/// all_gather, gather and scatter.
class MoveSteps final : public Steps {
 public:
  explicit MoveSteps(const StepContext& context) : context_(context), flow_(context.size) {
    const Collective& call = context_.call;
    if (call.op == Op::kScatter) {
      scatter();
    } else {
      gather(call.op == Op::kGather ? call.peer : -1);
    }
  }

  bool advance(Exchange& exchange) override { return flow_.advance(exchange); }
  int64_t lag() const override { return flow_.lag(); }

 private:
  void gather(int root) {
    const auto bytes = static_cast<int64_t>(context_.call.input.nbytes());
    char* const input = data_of(context_.call.input);
    char* const output = data_of(context_.call.output);
    const bool takes = root < 0 || root == context_.rank;
    if (takes) copy_bytes(output + context_.rank * bytes, input, bytes);
    for (int peer = 1; peer < context_.size; ++peer) {
      const int other = (context_.rank + peer) % context_.size;
      if (takes) flow_.receive(other, output + other * bytes, bytes);
      if (root < 0 || root == other) flow_.send(other, input, bytes);
    }
  }

  void scatter() {
    const auto bytes = static_cast<int64_t>(context_.call.output.nbytes());
    char* const output = data_of(context_.call.output);
    const int root = context_.call.peer;
    if (root != context_.rank) return flow_.receive(root, output, bytes);
    char* const input = data_of(context_.call.input);
    for (int rank = 0; rank < context_.size; ++rank) {
      char* const slice = input + context_.round.of(rank).record.slice * bytes;
      if (rank != root) flow_.send(rank, slice, bytes);
      if (rank == root) copy_bytes(output, slice, bytes);
    }
  }

  const StepContext context_;
  Flow flow_;
};

/// The root gives each rank a part, which passes on what it has; small tensors it gives to everyone
/// itself.
class BroadcastSteps final : public Steps {
 public:
  explicit BroadcastSteps(const StepContext& context)
      : context_(context),
        data_(data_of(context.call.output)),
        bytes_(static_cast<int64_t>(context.call.output.nbytes())),
        is_direct_(bytes_ <= kDirectBytes || context.size == 2),
        parts_(context.size),
        passed_(context.size),
        lag_(parts_.lag()) {
    give_parts();
    if (!is_direct_) pass_on();
  }

  bool advance(Exchange& exchange) override {
    if (parts_.advance(exchange)) return true;
    if (is_direct_) return false;
    lag_ = parts_have_come_ ? passed_.lag() : 0;
    if (!parts_have_come_) return parts_have_come_ = true;
    return passed_.advance(exchange);
  }
  int64_t lag() const override { return lag_; }

 private:
  /// Where a rank's part begins.
  int64_t begin(int rank) const {
    if (is_direct_) return 0;
    const int64_t share = (bytes_ + context_.size - 1) / context_.size;
    return std::min(rank * share, bytes_);
  }
  int64_t length(int rank) const { return is_direct_ ? bytes_ : begin(rank + 1) - begin(rank); }

  void give_parts() {
    const int root = context_.call.peer;
    const int own = context_.rank;
    if (root != own) return parts_.receive(root, data_ + begin(own), length(own));
    for (int rank = 0; rank < context_.size; ++rank) {
      if (rank != root) parts_.send(rank, data_ + begin(rank), length(rank));
    }
  }

  void pass_on() {
    const int root = context_.call.peer;
    for (int rank = 0; rank < context_.size; ++rank) {
      if (rank == context_.rank) continue;
      if (context_.rank != root) passed_.receive(rank, data_ + begin(rank), length(rank));
      if (rank != root) passed_.send(rank, data_ + begin(context_.rank), length(context_.rank));
    }
  }

  const StepContext context_;
  char* const data_;
  const int64_t bytes_;
  const bool is_direct_;
  Flow parts_;
  Flow passed_;
  int64_t lag_;
  bool parts_have_come_ = false;  // when the next step begins
};

/// With counts, all ranks see all counts first and find the same mismatch.
class AllToAllSteps final : public Steps {
 public:
  explicit AllToAllSteps(const StepContext& context)
      : context_(context),
        has_counts_(!context.call.input_counts.empty()),
        given_(context.call.input_counts),
        taken_(context.call.output_counts),
        flow_(context.size) {
    if (has_counts_) return;
    const auto ranks = static_cast<size_t>(context.size);
    given_.assign(ranks, context.call.input.numel() / context.size);
    taken_.assign(ranks, context.call.output.numel() / context.size);
  }

  bool advance(Exchange& exchange) override {
    if (has_counts_ && all_.empty()) {
      tell_counts(exchange);
      return true;
    }
    if (!std::exchange(is_moving_, true)) {
      if (has_counts_) compare_counts();
      if (problem_.empty()) move();
    }
    return flow_.advance(exchange);
  }
  int64_t lag() const override { return is_moving_ ? flow_.lag() : 0; }

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
        problem_ = count_mismatch(context_.link.name_of(giver), given, context_.link.name_of(taker),
                                  expected, context_.call.tag);
      }
    }
  }

  void move() {
    const int64_t element = context_.call.input.element_size();
    char* from = data_of(context_.call.input);
    char* to = data_of(context_.call.output);
    for (int rank = 0; rank < context_.size; ++rank) {
      const auto index = static_cast<size_t>(rank);
      if (rank == context_.rank) {
        copy_bytes(to, from, given_[index] * element);
      } else {
        flow_.receive(rank, to, taken_[index] * element);
        flow_.send(rank, from, given_[index] * element);
      }
      from += given_[index] * element;
      to += taken_[index] * element;
    }
  }

  const StepContext context_;
  const bool has_counts_;
  std::vector<int64_t> given_;
  std::vector<int64_t> taken_;
  std::vector<int64_t> own_;
  std::vector<int64_t> all_;
  std::string problem_;
  Flow flow_;
  bool is_moving_ = false;  // counts have come, and what they count is under way
};

}  // namespace

std::unique_ptr<Steps> make_move_steps(const StepContext& context) {
  if (context.call.op == Op::kBroadcast) return std::make_unique<BroadcastSteps>(context);
  if (context.call.op == Op::kAllToAll) return std::make_unique<AllToAllSteps>(context);
  return std::make_unique<MoveSteps>(context);
}

}  // namespace tessera::internal::mpi
