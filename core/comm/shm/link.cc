#include "tessera/core/comm/shm/link.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/comm/shm/transfer.h"

namespace tessera::internal::shm {
namespace {

// How long a waiting thread sleeps at most before it looks for dead or missing peers and for
// failures.
constexpr auto kSlice = std::chrono::milliseconds(20);
constexpr int kYields = 100;

}  // namespace

Link::Link(std::shared_ptr<World> world, std::shared_ptr<Segment> memory, Channel& channel,
           int rank, int spin_count)
    : world_(std::move(world)),
      memory_(std::move(memory)),
      channel_(channel),
      rank_(rank),
      spin_count_(spin_count),
      sources_(static_cast<size_t>(channel.size)),
      cursors_(static_cast<size_t>(channel.size)) {}

Link::~Link() {
  drop_taken();
  if (staging_ != nullptr) world_->arena()->free(staging_);
}

at::Tensor Link::allocate(int64_t numel, at::ScalarType dtype) {
  return world_->arena()->allocate_tensor(numel, dtype);
}

bool Link::is_in_place(const at::Tensor& tensor) const {
  return !tensor.defined() || tensor.numel() == 0 ||
         find(tensor.const_data_ptr(), static_cast<int64_t>(tensor.nbytes()));
}

template <typename Condition>
bool Link::is_true_of_all(Condition&& condition) const {
  for (int rank = 0; rank < size(); ++rank) {
    if (!condition(channel_.slot(rank))) return false;
  }
  return true;
}

bool Link::are_all_done(int64_t sequence) const {
  return is_true_of_all(
      [&](ChannelSlot& slot) { return slot.done.load(std::memory_order_seq_cst) > sequence; });
}

bool Link::have_all_ended(int64_t steps) const {
  return is_true_of_all(
      [&](ChannelSlot& slot) { return slot.steps.load(std::memory_order_seq_cst) >= steps; });
}

bool Link::may_announce(const Call& call, int64_t under_way) const {
  // The call that has this call's slot now.
  const int64_t before = call.sequence() - ChannelSlot::kCalls;
  if (before >= done_by_all_) {
    if (!are_all_done(before)) return false;
    done_by_all_ = call.sequence();
    for (int rank = 0; rank < size(); ++rank) {
      done_by_all_ = std::min(done_by_all_, channel_.slot(rank).done.load());
    }
  }
  // If peers cannot map the input, the call needs the staging area, which only one call at a time
  // can use.
  return under_way == 0 || is_in_place(call.collective().input);
}

std::unique_ptr<Transfer> Link::prepare(Call& call) {
  const OpTraits traits = traits_of(call.collective().op);
  if (traits.reduces) return make_reduction(*this, call);
  if (traits.tensors != OpTraits::Tensors::kNone) return make_move(*this, call);
  return std::make_unique<ControlTransfer>(*this, call);
}

PostedCall& Link::begin_post(const Call& call) {
  PostedCall& posted = call_of(rank_, call.sequence());
  posted.source = SharedRange();
  posted.is_private = false;
  call.record().copy_to(posted.record);
  return posted;
}

void Link::fill(PostedCall& posted, const Call& call) {
  const Op op = call.record().signature.op;
  if (op == Op::kSubgroup && call.ranks().front() == rank_) posted.source = make_channel(call);
  const at::Tensor& own = call.collective().input;
  if (op != Op::kMakeWindow || own.numel() == 0) return;
  // The window is posted even if peers cannot map its memory, so that all ranks report that.
  const auto range = find(own.const_data_ptr(), static_cast<int64_t>(own.nbytes()));
  posted.is_private = !range;
  if (range) posted.source = *range;
}

void Link::post(const Call& call) {
  channel_.slot(rank_).posted.store(call.sequence() + 1, std::memory_order_seq_cst);
  if (have_all_called(call.sequence())) ring_bells();
}

bool Link::have_all_called(int64_t sequence) const {
  return is_true_of_all(
      [&](ChannelSlot& slot) { return slot.posted.load(std::memory_order_seq_cst) > sequence; });
}

SharedRange Link::make_channel(const Call& call) {
  const auto count = static_cast<int>(call.ranks().size());
  subgroup_ = Segment::create(Channel::bytes(count));
  auto* const made = new (subgroup_->data()) Channel(count);
  for (int i = 0; i < count; ++i) {
    made->slot(i).world_rank = world_rank(call.ranks()[static_cast<size_t>(i)]);
  }
  return subgroup_->range(0);
}

void Link::open_subgroup(Call& call) {
  const std::vector<int>& ranks = call.ranks();
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) return;
  std::shared_ptr<Segment> memory = std::exchange(subgroup_, nullptr);
  if (memory == nullptr) memory = Segment::open(call_of(ranks.front(), call.sequence()).source);
  Channel& channel = *reinterpret_cast<Channel*>(memory->data());
  call.made().link = std::make_unique<Link>(world_, std::move(memory), channel,
                                            static_cast<int>(own - ranks.begin()), spin_count_);
}

const CallRecord* Link::record_of(int rank, int64_t sequence) const {
  ChannelSlot& slot = channel_.slot(rank);
  if (slot.posted.load(std::memory_order_seq_cst) <= sequence) return nullptr;
  return &slot.call(sequence).record;
}

void Link::note_over(int64_t sequence) {
  channel_.slot(rank_).collectives.store(sequence + 1, std::memory_order_relaxed);
}

/// Keeps the tensors and the staging area, because a peer that was stopped in the call may continue
/// later and still read and write them.
void Link::abandon(std::unique_ptr<Transfer> transfer, const Collective& collective) {
  transfer.reset();
  staging_ = nullptr;
  for (const at::Tensor& tensor : {collective.input, collective.output}) {
    if (tensor.defined()) world_->progress().keep(tensor);
  }
}

void Link::mark_done(int64_t sequence) {
  channel_.slot(rank_).done.store(sequence + 1, std::memory_order_seq_cst);
  if (are_all_done(sequence)) ring_bells();
}

void Link::end_step() {
  channel_.slot(rank_).steps.store(++steps_, std::memory_order_seq_cst);
  if (have_all_ended(steps_)) ring_bells();
}

char* Link::staging() {
  if (staging_ == nullptr) staging_ = world_->arena()->allocate(kStagingBytes);
  return staging_;
}

char* Link::resolve(const SharedRange& range) {
  std::shared_ptr<Segment>& segment = segments_[range.segment];
  if (segment == nullptr) {
    try {
      segment = Segment::open(range);
    } catch (const c10::Error&) {
      // If the peer has closed the segment, it may be dying, so wait until its process has ended;
      // then check_peers() finds it dead. If the segment could not be opened for another reason, no
      // wait is needed.
      if (Segment::is_closed(range)) world_->await_end_of(range.pid);
      world_->check_peers();
      if (has_failed()) throw Fault{failure().cause};
      throw;
    }
  }
  return segment->data() + range.offset_bytes;
}

int64_t Link::called_by(int rank) const {
  return channel_.slot(rank).posted.load(std::memory_order_acquire);
}

int64_t Link::finished_by(int rank) const {
  return channel_.slot(rank).collectives.load(std::memory_order_relaxed);
}

bool Link::has_left(int rank) const {
  return channel_.slot(rank).left.load(std::memory_order_seq_cst) != 0;
}

bool Link::has_failed() const { return channel_.poison.is_set() || world_->poison().is_set(); }

Failure Link::failure() const {
  if (channel_.poison.is_set()) return {channel_.poison.cause(), channel_.poison.detail()};
  if (!world_->poison().is_set()) return {};
  const std::string cause = world_->poison().cause();
  const int64_t author = world_->poison().detail();
  for (int rank = 0; rank < size(); ++rank) {
    if (world_rank(rank) == author) return {.cause = cause, .author = rank};
  }
  return {.cause = cause, .author = author < 0 ? Failure::kNobody : Failure::kOutsider};
}

bool Link::fail(const Failure& failure) noexcept {
  if (world_->poison().is_set()) return false;
  const bool is_first = channel_.poison.set(failure.cause, failure.calls);
  ring_bells();
  return is_first;
}

bool Link::fail_world(std::string_view cause) noexcept {
  return world_->fail_by(world_->rank(), cause);
}

void Link::look_for_dead(const std::function<std::string(const std::string&)>& describe) {
  world_->check_peers(describe);
}

void Link::leave() noexcept {
  channel_.slot(rank_).left.store(1, std::memory_order_seq_cst);
  ring_bells();
}

void Link::attach(std::weak_ptr<Member> member) { world_->progress().add(std::move(member)); }

/// Returns a count that grows when a rank of the group posts a call or does a part of one.
uint32_t Link::done_so_far() const {
  int64_t sum = 0;
  for (int rank = 0; rank < size(); ++rank) {
    const ChannelSlot& slot = channel_.slot(rank);
    sum += slot.posted.load() + slot.done.load() + slot.steps.load();
  }
  return static_cast<uint32_t>(sum);
}

void Link::before_look(Rest& rest) {
  if (rest.is_asleep) {
    rest.seen = world_->bell_of(world_->rank()).rings.load(std::memory_order_seq_cst);
  }
}

/// Waits a little, in three stages: spins, then yields the core to a peer that shares it, then
/// sleeps. Sleep comes last because a core whose threads all sleep halts, and waking it costs more
/// than all spins and yields before.
void Link::rest(Rest& rest) {
  Bell& bell = world_->bell_of(world_->rank());
  if (rest.is_asleep) {
    futex_wait(bell.rings, rest.seen, kSlice);
  } else if (rest.looks < spin_count_) {
    spin_pause();
  } else if (rest.looks < spin_count_ + kYields) {
    ::sched_yield();
  } else if (const uint32_t now = done_so_far(); now != rest.seen) {
    // Some call of the group has advanced, so the awaited call may advance soon: spin again.
    rest.looks = 0;
    rest.seen = now;
  } else {
    // From here on this thread counts as a sleeper, so that peers know that it needs waking.
    bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
    rest.is_asleep = rest.is_slow = true;
  }
  ++rest.looks;
}

void Link::end_rest(Rest& rest) {
  if (!rest.is_asleep) return;
  world_->bell_of(world_->rank()).sleepers.fetch_sub(1, std::memory_order_seq_cst);
  rest = {};
}

}  // namespace tessera::internal::shm
