#include "tessera/core/comm/shm/member.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/call_mismatch.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/errors.h"

namespace tessera::internal::shm {
namespace {

using Clock = std::chrono::steady_clock;

// How long a sleeper trusts that it will be woken before it looks for dead, poisoned or missing
// peers.
constexpr auto kSlice = std::chrono::milliseconds(20);
constexpr int kYields = 100;

/// Counts as a sleeper while alive, so that arriving peers know whether anyone needs waking.
class Sleeper {
 public:
  explicit Sleeper(Bell& bell) : bell_(bell) {
    bell_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  }
  ~Sleeper() { bell_.sleepers.fetch_sub(1, std::memory_order_seq_cst); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

 private:
  Bell& bell_;
};

}  // namespace

Member::Member(std::shared_ptr<World> world, std::shared_ptr<Segment> memory, Channel& channel,
               int rank, std::string group_name, Options options)
    : world_(std::move(world)),
      memory_(std::move(memory)),
      channel_(channel),
      rank_(rank),
      group_name_(std::move(group_name)),
      options_(options) {}

Member::~Member() {
  if (world_->origin().is_here()) leave();
}

void Member::leave() {
  channel_.slot(rank_).left.store(1, std::memory_order_seq_cst);
  wake();
}

void Member::require_own_process(const char* op, std::string_view tag) const {
  if (world_->origin().is_here()) return;
  throw CommError({op, group_name_, -1, rank_, std::string(tag)},
                  world_->origin().fork_error(absl::StrCat("rank ", world_->rank())));
}

CallDescriptor Member::next_call(const CallSignature& signature, std::string_view tag) {
  call_ = CallDescriptor();
  call_.sequence = ++sequence_;
  call_.signature = signature;
  call_.tag.set(tag);
  throw_if_failed(call_);
  note_collective(to_string(signature.op), tag, sequence_, group_name_);
  flight_of(sequence_) = world_->ring().begin(signature, sequence_, tag, group_name_);
  return call_;
}

void Member::post(const CallDescriptor& call) {
  call_ = call;
  publish(call);
  wait({Awaited::What::kPosted, call.sequence}, call);
  take_up(call.sequence);
}

void Member::publish(const CallDescriptor& call) {
  ChannelSlot& own = channel_.slot(rank_);
  own.call(call.sequence) = call;
  own.posted.store(call.sequence + 1, std::memory_order_seq_cst);
  if (is_true({Awaited::What::kPosted, call.sequence})) wake();
}

void Member::take_up(int64_t sequence) {
  taken_up_ = sequence;
  const CallDescriptor& first = call_of(0);
  for (int rank = 1; rank < size(); ++rank) {
    const CallDescriptor& other = call_of(rank);
    if (same_call(first, other)) continue;
    fail(call_of(rank_), absl::StrCat(name_of(rank), " called ", describe(other), " where ",
                                      name_of(0), " called ", describe(first)));
  }
}

void Member::mark_done() {
  const int64_t sequence = taken_up_;
  channel_.slot(rank_).done.store(sequence + 1, std::memory_order_seq_cst);
  if (is_true({Awaited::What::kDone, sequence})) wake();
}

/// Tells all ranks of the group that something has come true.
void Member::wake() { world_->ring_bells(channel_); }

void Member::arrive_and_wait() {
  channel_.slot(rank_).arrivals.store(++phase_, std::memory_order_release);
  const uint32_t target = phase_ * static_cast<uint32_t>(size());  // wraps with the counter
  if (channel_.arrivals.fetch_add(1, std::memory_order_seq_cst) + 1 == target) return wake();
  wait({Awaited::What::kPhase, phase_}, call_of(rank_));
}

bool Member::holds(const ChannelSlot& slot, const Awaited& awaited) const {
  switch (awaited.what) {
    case Awaited::What::kPhase:
      return static_cast<int32_t>(slot.arrivals.load(std::memory_order_acquire) -
                                  static_cast<uint32_t>(awaited.number)) >= 0;
    case Awaited::What::kPosted:
      return slot.posted.load(std::memory_order_seq_cst) > awaited.number;
    case Awaited::What::kDone:
      return slot.done.load(std::memory_order_seq_cst) > awaited.number;
  }
  return false;
}

bool Member::is_true(const Awaited& awaited) {
  if (awaited.what == Awaited::What::kPhase) {
    // Wraps together with the counter.
    const uint32_t target = static_cast<uint32_t>(awaited.number) * static_cast<uint32_t>(size());
    return static_cast<int32_t>(channel_.arrivals.load(std::memory_order_seq_cst) - target) >= 0;
  }
  for (int rank = 0; rank < size(); ++rank) {
    if (!holds(channel_.slot(rank), awaited)) return false;
  }
  return true;
}

void Member::wait(const Awaited& awaited, const CallDescriptor& call) {
  for (int i = 0; i < options_.spin_count; ++i) {
    if (is_true(awaited)) return;
    world_->progress().advance();
    spin_pause();
  }
  // Gives the core to a peer that shares it. A core on which everyone sleeps halts, and waking it
  // costs more than all of these together.
  for (int i = 0; i < kYields; ++i) {
    if (is_true(awaited)) return;
    world_->progress().advance();
    ::sched_yield();
  }
  wait_slowly(awaited, call);
}

void Member::wait_slowly(const Awaited& awaited, const CallDescriptor& call) {
  Bell& bell = world_->bell_of(world_->rank());
  Sleeper sleeper(bell);
  const auto start = Clock::now();
  bool is_reported = options_.report_after.count() <= 0;
  while (true) {
    const uint32_t rings = bell.rings.load(std::memory_order_seq_cst);
    world_->progress().advance();
    if (is_true(awaited)) return;
    throw_if_failed(call);
    if (stopping_.load(std::memory_order_seq_cst)) {
      throw error(call, "the group was destroyed while this collective ran");
    }
    check_leavers(awaited, call);
    const auto now = Clock::now();
    if (now - start >= options_.timeout) {
      const std::vector<int> missing = overdue(awaited);
      if (!missing.empty()) time_out(missing, call);
    }
    if (futex_wait(bell.rings, rings, kSlice)) {
      check_peers(call);
    }
    if (!is_reported && now - start >= options_.report_after) {
      is_reported = true;
      report_wait(awaited, call, now - start);
    }
  }
}

void Member::check_slices() {
  bool usual = true;
  for (int rank = 0; rank < size(); ++rank) usual = usual && call_of(rank).slice == rank;
  if (usual) return;
  // All ranks see all calls, so all find the same two.
  for (int rank = 1; rank < size(); ++rank) {
    for (int other = 0; other < rank; ++other) {
      if (call_of(rank).slice != call_of(other).slice) continue;
      fail(call_of(rank_), slice_mismatch(name_of(rank), name_of(other), call_of(rank).slice,
                                          describe(call_of(rank))));
    }
  }
}

char* Member::source_of(int rank) {
  const SharedRange& range = call_of(rank).source;
  char*& base = bases_[range.segment];
  if (base == nullptr) base = begin_of(range);
  return base + range.offset_bytes;
}

char* Member::begin_of(const SharedRange& range) {
  try {
    return world_->resolve(range) - range.offset_bytes;
  } catch (const c10::Error&) {
    check_peers(call_of(rank_));  // a rank's memory goes with it
    throw_if_failed(call_of(rank_));
    throw;
  }
}

void Member::check_peers(const CallDescriptor& call) {
  world_->check_peers(
      [this, &call](const std::string& cause) -> std::string { return error(call, cause).what(); });
}

void Member::stop() {
  stopping_.store(true, std::memory_order_seq_cst);
  world_->bell_of(world_->rank()).ring();
}

}  // namespace tessera::internal::shm
