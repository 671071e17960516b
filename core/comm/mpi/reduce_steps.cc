#include <algorithm>

#include <ATen/ops/empty.h>

#include "tessera/core/comm/kernels/reduce_kernels.h"
#include "tessera/core/comm/mpi/steps.h"
#include "tessera/core/numbers/round_up.h"

namespace tessera::internal::mpi {
namespace {

constexpr int64_t kMostPiece = Exchange::kUnaskedBytes;
constexpr int64_t kLeastPiece = int64_t{8} << 10;
constexpr int64_t kAlignment = 64;  // elements

/// Returns `scratch` after making sure that it has room for at least `bytes` bytes. If it is
/// replaced by a larger tensor, its content is lost.
at::Tensor kept_memory(at::Tensor& scratch, int64_t bytes) {
  if (!scratch.defined() || scratch.numel() < bytes) scratch = at::empty({bytes}, at::kByte);
  return scratch;
}

/// The steps of a reduction. In a step this rank sends each other rank a piece, which the receiver
/// will reduce. In the same step it reduces the pieces of an earlier step: step number s reduces
/// those of step number s - (places_ - 1). Each piece is received at a place of its own. A piece is
/// reduced, and its place reused, only when all messages of the piece's step have completed. With
/// many ranks, the places take more memory than kHeldBytes. See Note [Steps under way].
class ReduceSteps final : public Steps {
 public:
  explicit ReduceSteps(const CollectiveContext& context)
      : context_(context),
        scatters_(context.call.op == Op::kReduceScatter),
        root_(context.call.op == Op::kReduce ? context.call.peer : -1),
        element_(context.call.input.element_size()),
        numel_((scatters_ ? context.call.output : context.call.input).numel()),
        data_(data_of(context.call.input)),
        places_(steps_under_way(context.size)),
        piece_(piece_numel()),
        chunk_(scatters_ ? piece_ : piece_ * context.size),
        memory_(kept_memory(context.scratch, places_ * context.size * piece_ * element_)) {}

  bool advance(Exchange& exchange) override {
    const int64_t count = (numel_ + chunk_ - 1) / chunk_;
    const int64_t step = step_++;
    const int64_t come = step - (places_ - 1);
    if (come >= count) return false;
    if (step < count) give(exchange, step);
    if (come >= 0) take(exchange, come);
    return true;
  }
  int64_t lag() const override { return places_ - 2; }

 private:
  /// Adjacent elements of this rank's tensor.
  struct Range {
    char* data;
    int64_t numel;
  };

  /// Returns the largest number of elements that a rank reduces in a step.
  int64_t piece_numel() const {
    const int64_t bytes =
        std::clamp(kHeldBytes / (places_ * context_.size), kLeastPiece, kMostPiece);
    const int64_t most = std::max(bytes / element_ / kAlignment, int64_t{1}) * kAlignment;
    const int64_t share = scatters_ ? numel_ : (numel_ + context_.size - 1) / context_.size;
    return std::min(most, std::max(round_up(share, kAlignment), kAlignment));
  }

  /// Returns the elements that rank `rank` reduces in step `step`: for reduce_scatter a part of its
  /// slice, otherwise its share of a chunk of the tensor.
  Range range(int64_t step, int rank) const {
    const int64_t begin = step * chunk_;
    const int64_t length = std::min(chunk_, numel_ - begin);
    if (scatters_) {
      const int64_t slice = context_.round.of(rank).record.slice * numel_;
      return {data_ + (slice + begin) * element_, length};
    }
    const int64_t share = (length + context_.size - 1) / context_.size;
    const int64_t from = std::min(rank * share, length);
    return {data_ + (begin + from) * element_, std::min((rank + 1) * share, length) - from};
  }

  /// Returns where the piece of `rank` arrives in step `step`.
  char* place(int64_t step, int rank) const {
    return data_of(memory_) + (step % places_ * context_.size + rank) * piece_ * element_;
  }

  void give(Exchange& exchange, int64_t step) {
    const int64_t own = range(step, context_.rank).numel;
    for (int peer = 1; peer < context_.size; ++peer) {
      const int from = (context_.rank + peer) % context_.size;
      exchange.receive(from, place(step, from), own * element_);
    }
    for (int peer = 1; peer < context_.size; ++peer) {
      const int to = (context_.rank + peer) % context_.size;
      const Range part = range(step, to);
      exchange.send(to, part.data, part.numel * element_);
    }
  }

  /// Reduces the pieces that came in step `step`. Then passes the results on: for all_reduce each
  /// rank sends its result to all ranks, for reduce to the root.
  void take(Exchange& exchange, int64_t step) {
    const Range own = range(step, context_.rank);
    if (scatters_) {
      return reduce(step, own, data_of(context_.call.output) + step * chunk_ * element_);
    }
    const int64_t bytes = own.numel * element_;
    const bool keeps = root_ < 0 || root_ == context_.rank;
    char* const target = keeps ? own.data : place(step, context_.rank);
    reduce(step, own, target);
    if (!keeps) return exchange.send(root_, target, bytes);
    for (int peer = 1; peer < context_.size; ++peer) {
      const int other = (context_.rank + peer) % context_.size;
      const Range part = range(step, other);
      exchange.receive(other, part.data, part.numel * element_);
      if (root_ < 0) exchange.send(other, target, bytes);
    }
  }

  /// Reduces, in rank order, `own` of this rank and the pieces that came from the other ranks in
  /// step `step`. Writes the result to `target`.
  void reduce(int64_t step, const Range& own, char* target) {
    sources_.clear();
    for (int rank = 0; rank < context_.size; ++rank) {
      sources_.push_back(rank == context_.rank ? own.data : place(step, rank));
    }
    kernels::reduce(context_.call.input.scalar_type(), context_.call.reduce, sources_.data(),
                    context_.size, &target, 1, own.numel, kernels::Stores::kCached,
                    context_.call.divisor, context_.call.order);
  }

  const CollectiveContext context_;
  const bool scatters_;
  const int root_;
  const int64_t element_;
  const int64_t numel_;
  char* const data_;
  const int64_t places_;
  const int64_t piece_;  // the largest number of elements in a piece
  // How many elements a step takes from the tensor or, for reduce_scatter, from each slice.
  const int64_t chunk_;
  const at::Tensor memory_;
  std::vector<const char*> sources_;
  int64_t step_ = 0;
};

}  // namespace

std::unique_ptr<Steps> make_reduce_steps(const CollectiveContext& context) {
  return std::make_unique<ReduceSteps>(context);
}

}  // namespace tessera::internal::mpi
