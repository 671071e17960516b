#include "tessera/core/comm/mpi/transfer.h"

#include <string>
#include <utility>

namespace tessera::internal::mpi {
namespace {

/// Whether the last messages need no other memory than the call's.
bool is_stream(Op op) {
  return op == Op::kAllReduce || op == Op::kReduceScatter || op == Op::kAllGather;
}

/// This rank's part in a collective of a group: the steps of its data, one after the other.
///
/// Note [Calls that follow]
/// ~~~~~~~~~~~~~~~~~~~~~~~~
/// Calls are over one after the other. But when all messages of one have begun, what is under way
/// takes a while to come, and the wire would lie idle until both ranks have seen its end: the next
/// call begins meanwhile, if both are of the ops whose last messages need no other memory than the
/// call's.
class CallTransfer final : public Transfer {
 public:
  CallTransfer(Link& link, Call& call) : link_(link), call_(call), ranks_(link.ranks()) {}

  void announce() override { link_.announce(call_); }

  State advance() override {
    if (exchange_ == nullptr) begin();
    has_begun_all_ = has_begun_all_ || take_steps();
    const bool is_first = link_.finished() == call_.sequence();
    if (!is_first || !has_begun_all_ || !exchange_->is_over()) {
      const bool may_follow = is_first && has_begun_all_ && is_stream(call_.record().signature.op);
      return may_follow ? State::kGiven : State::kMoving;
    }
    const std::string problem = steps_ == nullptr ? "" : steps_->problem();
    if (!problem.empty()) throw Fault{problem};
    link_.open(call_);
    return State::kOver;
  }

  std::vector<int> awaited() override {
    return exchange_ == nullptr ? std::vector<int>() : exchange_->open_ranks();
  }
  Exchange* exchange() override { return exchange_.get(); }

 private:
  void begin() {
    round_ = link_.round_of(call_.sequence());
    exchange_ = std::make_unique<Exchange>(link_.world().communicator(), ranks_->world_ranks(),
                                           round_->of(link_.rank()).data_tag);
    for (int rank = 0; rank < link_.size(); ++rank) {
      exchange_->set_tag_of(rank, round_->of(rank).data_tag);
    }
    steps_ = make_steps({.call = call_.collective(),
                         .round = *round_,
                         .rank = link_.rank(),
                         .size = link_.size(),
                         .link = link_,
                         .scratch = link_.scratch()});
  }

  /// As many as can begin now; whether there are no more.
  bool take_steps() {
    while (steps_ != nullptr && exchange_->is_over_but_for(steps_->lag())) {
      exchange_->begin_step();
      if (!steps_->advance(*exchange_)) return true;
    }
    return steps_ == nullptr;
  }

  Link& link_;
  Call& call_;
  const std::shared_ptr<Ranks> ranks_;  // which MPI may use when it is given up, as what follows
  std::shared_ptr<const Round> round_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Steps> steps_;  // null where nothing is to be moved
  bool has_begun_all_ = false;
};

}  // namespace

std::unique_ptr<Transfer> make_transfer(Link& link, Call& call) {
  return std::make_unique<CallTransfer>(link, call);
}

}  // namespace tessera::internal::mpi
