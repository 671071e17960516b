#include "tessera/core/comm/shm/transfer.h"

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/groups/op_traits.h"

namespace tessera::internal::shm {
namespace {

/// Returns the element size of the input or, on a rank without an input, of the output.
int64_t element_of(const Collective& call) {
  const at::Tensor& tensor = call.input.defined() ? call.input : call.output;
  return static_cast<int64_t>(tensor.element_size());
}

}  // namespace

ChunkedTransfer::ChunkedTransfer(Link& link, const Call& call, int64_t numel, int64_t places)
    : link_(link),
      call_(call),
      element_(element_of(call.collective())),
      numel_(numel),
      chunk_(std::max<int64_t>(Link::kStagingBytes / element_ / places, 1)) {}

void ChunkedTransfer::announce() {
  fill(link_.begin_post(call_));
  link_.post(call_);
}

void ChunkedTransfer::fill(PostedCall& posted) {
  const Collective& call = collective();
  if (traits_of(call.op).gives(rank(), call.peer)) {
    give(call.input, posted.source, posted.is_private);
  }
}

void ChunkedTransfer::give(const at::Tensor& data, SharedRange& source, bool& is_private) {
  if (data.numel() == 0) return;
  if (const auto range = link_.find(data.const_data_ptr(), static_cast<int64_t>(data.nbytes()))) {
    source = *range;
    return;
  }
  source = *link_.find(link_.staging(), Link::kStagingBytes);
  is_private = stages_ = true;
  stage(0, std::min(chunk_, numel_));  // before the call is posted, which saves a step
}

void ChunkedTransfer::stage(int64_t begin, int64_t count) {
  copy_bytes(link_.staging(), data_of(collective().input) + bytes(begin), bytes(count));
}

bool ChunkedTransfer::is_any_staged() const {
  for (int peer = 0; peer < size(); ++peer) {
    if (is_staged(peer)) return true;
  }
  return false;
}

Transfer::State ChunkedTransfer::advance() {
  while (true) {
    switch (next_) {
      case Next::kBegin:
        begin();
        target_ = link_.steps();
        step_ = is_any_staged() ? chunk_ : std::max<int64_t>(numel_, 1);
        next_ = Next::kTake;
        if (numel_ > 0) break;
        link_.mark_done(call_.sequence());
        // Even without data, end only when all ranks are done: they may still read this rank's
        // counts.
        next_ = Next::kEnd;
        break;
      case Next::kTake:
        take(begin_, count());
        if (begin_ + step_ >= numel_) {
          link_.mark_done(call_.sequence());
          next_ = Next::kEnd;
          break;
        }
        link_.end_step();
        ++target_;
        next_ = Next::kEndPart;
        break;
      case Next::kEndPart:
        if (!link_.have_all_ended(target_)) return State::kMoving;
        if (stages_) bring_back(begin_, count());
        begin_ += step_;
        if (stages_) stage(begin_, count());
        link_.end_step();
        ++target_;
        next_ = Next::kStage;
        break;
      case Next::kStage:
        if (!link_.have_all_ended(target_)) return State::kMoving;
        next_ = Next::kTake;
        break;
      case Next::kEnd:
        if (!link_.are_all_done(call_.sequence())) {
          return stages_ ? State::kMoving : State::kGiven;
        }
        if (stages_) bring_back(begin_, count());
        next_ = Next::kOver;
        break;
      case Next::kOver:
        return State::kOver;
    }
  }
}

std::vector<int> ChunkedTransfer::awaited() {
  return link_.ranks_where([&](int peer) {
    const ChannelSlot& slot = link_.channel().slot(peer);
    return next_ == Next::kEnd ? slot.done.load() <= call_.sequence() : slot.steps.load() < target_;
  });
}

void ControlTransfer::announce() {
  link_.fill(link_.begin_post(call_), call_);
  link_.post(call_);
}

Transfer::State ControlTransfer::advance() {
  const Op op = call_.record().signature.op;
  if (op == Op::kBarrier) {
    link_.note_done(call_.sequence());
    return State::kOver;
  }
  if (!has_met_) {
    if (op == Op::kMakeWindow) link_.open_window(call_);
    if (op == Op::kSubgroup) link_.open_subgroup(call_);
    has_met_ = true;
    link_.mark_done(call_.sequence());
  }
  return link_.are_all_done(call_.sequence()) ? State::kOver : State::kGiven;
}

std::vector<int> ControlTransfer::awaited() {
  return link_.ranks_where(
      [&](int peer) { return link_.channel().slot(peer).done.load() <= call_.sequence(); });
}

}  // namespace tessera::internal::shm
