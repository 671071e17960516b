#include <algorithm>

#include "tessera/core/comm/kernels/reduce_kernels.h"
#include "tessera/core/comm/mpi/steps.h"

namespace tessera::internal::mpi {
namespace {

// A step gives pieces to those who reduce them, each in a place of its own, and reduces what came
// lag() steps before. A piece is reduced, and its place is written again, only when all messages
// of its step are over. Note [Steps under way]; a group holds more if the least pieces of its ranks
// take more.
constexpr int64_t kMostPiece = Exchange::kUnaskedBytes;
constexpr int64_t kLeastPiece = int64_t{8} << 10;
constexpr int64_t kAlignment = 64;  // elements

/// What both reductions share: pieces that come from all ranks, into one place after the other.
class Pieces {
 public:
  Pieces(const StepContext& context, int64_t most_numel)
      : context_(context),
        element_(context.call.input.element_size()),
        places_(steps_under_way(context.size)) {
    const int64_t bytes =
        std::clamp(kHeldBytes / (places_ * context.size), kLeastPiece, kMostPiece);
    numel_ = std::max(bytes / element_ / kAlignment, int64_t{1}) * kAlignment;
    const int64_t needed = (most_numel + kAlignment - 1) / kAlignment * kAlignment;
    numel_ = std::min(numel_, std::max(needed, kAlignment));
    memory_ = context.scratch.get(places_ * context.size * numel_ * element_);
  }

  int64_t numel() const { return numel_; }
  int64_t element() const { return element_; }
  /// After how many steps what has come is reduced.
  int64_t lag() const { return places_ - 1; }

  /// Where the piece of a rank comes in a step.
  char* place(int64_t step, int rank) const {
    return memory_ + (step % places_ * context_.size + rank) * numel_ * element_;
  }

  void receive(Exchange& exchange, int64_t step, int64_t numel) const {
    for (int peer = 1; peer < context_.size; ++peer) {
      const int from = (context_.rank + peer) % context_.size;
      exchange.receive(from, place(step, from), numel * element_);
    }
  }

  /// Of what has come in that step and this rank's `own`, in rank order.
  void reduce(int64_t step, const char* own, char* target, int64_t numel) {
    sources_.clear();
    for (int rank = 0; rank < context_.size; ++rank) {
      sources_.push_back(rank == context_.rank ? own : place(step, rank));
    }
    kernels::reduce(context_.call.input.scalar_type(), context_.call.reduce, sources_.data(),
                    context_.size, &target, 1, numel, kernels::Stores::kCached,
                    context_.call.divisor, context_.call.order);
  }

 private:
  const StepContext context_;
  const int64_t element_;
  const int64_t places_;
  int64_t numel_ = 0;
  char* memory_ = nullptr;
  std::vector<const char*> sources_;
};

/// all_reduce and reduce: a chunk of the tensor has a piece for every rank.
class ReduceSteps final : public Steps {
 public:
  explicit ReduceSteps(const StepContext& context)
      : context_(context),
        data_(data_of(context.call.input)),
        numel_(context.call.input.numel()),
        pieces_(context, (numel_ + context.size - 1) / context.size),
        root_(context.call.op == Op::kReduce ? context.call.peer : -1) {}

  bool advance(Exchange& exchange) override {
    const int64_t chunk = pieces_.numel() * context_.size;
    const int64_t count = (numel_ + chunk - 1) / chunk;
    const int64_t step = step_++;
    const int64_t come = step - pieces_.lag();
    if (come >= count) return false;
    if (step < count) give(exchange, step);
    if (come >= 0) take(exchange, come);
    return true;
  }
  int64_t lag() const override { return pieces_.lag() - 1; }

 private:
  struct Range {
    int64_t begin = 0;
    int64_t numel = 0;
  };

  /// The piece of `rank` in a chunk.
  Range range(int64_t step, int rank) const {
    const int64_t chunk = pieces_.numel() * context_.size;
    const int64_t begin = step * chunk;
    const int64_t length = std::min(chunk, numel_ - begin);
    const int64_t share = (length + context_.size - 1) / context_.size;
    const int64_t from = std::min(rank * share, length);
    return {begin + from, std::min((rank + 1) * share, length) - from};
  }

  void give(Exchange& exchange, int64_t step) {
    pieces_.receive(exchange, step, range(step, context_.rank).numel);
    for (int peer = 1; peer < context_.size; ++peer) {
      const int to = (context_.rank + peer) % context_.size;
      const Range part = range(step, to);
      exchange.send(to, at(part), part.numel * pieces_.element());
    }
  }

  void take(Exchange& exchange, int64_t step) {
    const Range own = range(step, context_.rank);
    const int64_t bytes = own.numel * pieces_.element();
    const bool keeps = root_ < 0 || root_ == context_.rank;
    char* const target = keeps ? at(own) : pieces_.place(step, context_.rank);
    pieces_.reduce(step, at(own), target, own.numel);
    if (!keeps) return exchange.send(root_, target, bytes);
    for (int peer = 1; peer < context_.size; ++peer) {
      const int other = (context_.rank + peer) % context_.size;
      const Range part = range(step, other);
      exchange.receive(other, at(part), part.numel * pieces_.element());
      if (root_ < 0) exchange.send(other, target, bytes);
    }
  }

  char* at(const Range& part) const { return data_ + part.begin * pieces_.element(); }

  const StepContext context_;
  char* const data_;
  const int64_t numel_;
  Pieces pieces_;
  const int root_;
  int64_t step_ = 0;
};

class ScatterReduceSteps final : public Steps {
 public:
  explicit ScatterReduceSteps(const StepContext& context)
      : context_(context),
        numel_(context.call.output.numel()),
        input_(data_of(context.call.input)),
        output_(data_of(context.call.output)),
        pieces_(context, numel_) {}

  bool advance(Exchange& exchange) override {
    const int64_t count = (numel_ + pieces_.numel() - 1) / pieces_.numel();
    const int64_t step = step_++;
    const int64_t come = step - pieces_.lag();
    if (come >= count) return false;
    if (step < count) give(exchange, step);
    if (come < 0) return true;
    const int64_t begin = come * pieces_.numel();
    const char* const own = slice_of(context_.rank) + begin * pieces_.element();
    pieces_.reduce(come, own, output_ + begin * pieces_.element(), numel_at(come));
    return true;
  }
  int64_t lag() const override { return pieces_.lag() - 1; }

 private:
  int64_t numel_at(int64_t step) const {
    return std::min(pieces_.numel(), numel_ - step * pieces_.numel());
  }
  const char* slice_of(int rank) const {
    return input_ + context_.round.of(rank).record.slice * numel_ * pieces_.element();
  }

  void give(Exchange& exchange, int64_t step) {
    const int64_t numel = numel_at(step);
    pieces_.receive(exchange, step, numel);
    for (int peer = 1; peer < context_.size; ++peer) {
      const int to = (context_.rank + peer) % context_.size;
      exchange.send(to, slice_of(to) + step * pieces_.numel() * pieces_.element(),
                    numel * pieces_.element());
    }
  }

  const StepContext context_;
  const int64_t numel_;
  char* const input_;
  char* const output_;
  Pieces pieces_;
  int64_t step_ = 0;
};

}  // namespace

std::unique_ptr<Steps> make_reduce_steps(const StepContext& context) {
  return std::make_unique<ReduceSteps>(context);
}

std::unique_ptr<Steps> make_scatter_reduce_steps(const StepContext& context) {
  return std::make_unique<ScatterReduceSteps>(context);
}

}  // namespace tessera::internal::mpi
