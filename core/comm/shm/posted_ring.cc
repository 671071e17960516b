#include "tessera/core/comm/shm/posted_ring.h"

#include <sched.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/process/error_text.h"
#include "tessera/core/process/fork.h"
#include "tessera/errors.h"

namespace tessera::internal::shm {
namespace {

/// Held for a call's part at most. Not taken twice by a thread.
class Lock {
 public:
  enum class Wait : uint8_t { kNo, kYes };
  Lock(std::atomic<bool>& word, Wait wait) : word_(word) {
    while (true) {
      owned_ = !word_.exchange(true, std::memory_order_acquire);
      if (owned_ || wait == Wait::kNo) return;
      ::sched_yield();
    }
  }
  ~Lock() {
    if (owned_) word_.store(false, std::memory_order_release);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  bool owned() const { return owned_; }

 private:
  std::atomic<bool>& word_;
  bool owned_ = false;
};

}  // namespace

/// Used again for a later call of the group when nobody else holds it.
class PostedRing::PostedWork final : public Work {
 public:
  bool is_completed() override {
    if (state_.load() != State::kPending || !origin_.is_here()) return true;
    ring_->advance();
    return state_.load() != State::kPending || ring_->member_.has_failed();
  }

  void wait() override {
    if (state_.load() == State::kPending) {
      ring_->member_.require_own_process("wait", "");
      ring_->finish(sequence_);
    }
    if (state_.load() == State::kLost) throw CommError(*error_);
  }

  void begin(PostedRing& ring, int64_t sequence) {
    ring_ = &ring;
    sequence_ = sequence;
    state_.store(State::kPending);
  }
  void finish() { state_.store(State::kFinished); }
  void lose(const CommError& error) {
    error_ = error;
    state_.store(State::kLost);
  }

 private:
  enum class State : uint8_t { kPending, kFinished, kLost };

  const Origin origin_;
  PostedRing* ring_ = nullptr;  // while the call is pending
  int64_t sequence_ = -1;
  std::atomic<State> state_{State::kFinished};
  std::optional<CommError> error_;
};

PostedRing::PostedRing(Member& member, Exchange& exchange) : member_(member), exchange_(exchange) {
  member_.world().progress().add(*this);
}

PostedRing::~PostedRing() {
  World& world = member_.world();
  const bool is_here = world.origin().is_here();
  if (is_here) {
    world.progress().remove(*this);
    retire();
    world.progress().count(static_cast<int>(next_ - end_));
  }
  for (int64_t sequence = first_; sequence < end_; ++sequence) {
    Entry& lost = entry(sequence);
    const std::string cause = member_.cause();
    lost.work->lose(member_.error(
        lost.call, cause.empty() ? "the group was destroyed while this collective ran" : cause));
    if (!is_here) continue;
    world.progress().keep(std::move(lost.collective.input));
    world.progress().keep(std::move(lost.collective.output));
  }
}

std::shared_ptr<Work> PostedRing::post(const Collective& collective, Algorithm algorithm) {
  CallDescriptor call = exchange_.next_call_of(collective, collective.input);
  call.slice = collective.slice;
  call.meets = false;
  const int64_t before = call.sequence - ChannelSlot::kCalls;
  if (first_ <= before && before < end_) {
    finish(before);
  } else if (before >= 0) {
    member_.wait({Awaited::What::kDone, before}, call);
  }
  put(collective, call, algorithm);
  member_.world().progress().count(1);
  std::shared_ptr<Work> work = entry(call.sequence).work;
  advance();
  return work;
}

void PostedRing::put(const Collective& collective, const CallDescriptor& call,
                     Algorithm algorithm) {
  const Lock lock(locked_, Lock::Wait::kYes);
  if (entries_.front().work == nullptr) {  // all at once: a later step allocates nothing
    for (Entry& entry : entries_) entry.work = std::make_shared<PostedWork>();
  }
  if (first_ == end_) first_ = next_ = published_ = call.sequence;  // other calls came in between
  Entry& entry = this->entry(call.sequence);
  if (entry.work.use_count() > 1) entry.work = std::make_shared<PostedWork>();
  entry.work->begin(*this, call.sequence);
  entry.collective = collective;
  entry.collective.tag = {};  // the caller's may be gone
  entry.call = call;
  entry.algorithm = algorithm;
  end_ = call.sequence + 1;
  publish();
}

/// Publishes calls as far as what they go on with has finished. With the lock.
void PostedRing::publish() {
  for (; published_ < end_ && !member_.has_failed(); ++published_) {
    Entry& next = entry(published_);
    if (next.collective.after != nullptr) {
      if (!next.collective.after->is_completed()) return;
      if (!run_or_fail(next, [&] { next.collective.after->wait(); })) return;
      next.collective.after = nullptr;
    }
    member_.publish(next.call);
  }
}

void PostedRing::advance(Blocking blocking) noexcept {
  const Lock lock(locked_, Lock::Wait::kNo);
  if (!lock.owned()) return;
  publish();
  while (next_ < end_ && member_.is_true({Awaited::What::kPosted, next_}) &&
         !member_.has_failed()) {
    if (!take_part(entry(next_), blocking)) break;
    ++next_;
    member_.world().progress().count(-1);
  }
  retire();
}

/// Whether it did. What goes wrong poisons the group.
bool PostedRing::take_part(Entry& entry, Blocking blocking) {
  bool is_done = false;
  run_or_fail(entry, [&] {
    member_.take_up(entry.call.sequence);
    if (blocking == Blocking::kNever && exchange_.anyone_meets()) return;
    exchange_.run_posted(entry.call, [&] { entry.algorithm(exchange_, entry.collective); });
    is_done = true;
  });
  return is_done;
}

/// Whether `body` has not thrown. If it has, the group has failed.
template <typename Body>
bool PostedRing::run_or_fail(const Entry& entry, Body&& body) {
  std::string cause;
  try {
    body();
    return true;
  } catch (const CommError& error) {
    cause = error.cause();
  } catch (const std::exception& error) {
    cause = absl::StrCat("rank ", member_.rank(), " failed: ", error_text(error));
  }
  try {
    member_.fail(entry.call, cause);
  } catch (const CommError&) {
  }
  return false;
}

/// Lets go of calls that all ranks are done with.
void PostedRing::retire() {
  while (first_ < next_ && member_.is_true({Awaited::What::kDone, first_})) {
    Entry& finished = entry(first_);
    finished.collective = {};
    member_.count_finished(first_);
    finished.work->finish();
    ++first_;
  }
}

void PostedRing::finish() {
  for (int64_t sequence = first_; sequence < end_; ++sequence) finish(sequence);
}

void PostedRing::finish(int64_t sequence) {
  const CallDescriptor call = entry(sequence).call;
  for (int64_t next; (next = next_) <= sequence;) {
    publish_up_to(next, call);
    member_.wait({Awaited::What::kPosted, next}, call);
    advance(Blocking::kForPhases);
    if (next_ <= sequence) member_.throw_if_failed(call);
  }
  member_.wait({Awaited::What::kDone, sequence}, call);
  const Lock lock(locked_, Lock::Wait::kYes);
  retire();
}

/// Blocks until call `sequence` is published.
void PostedRing::publish_up_to(int64_t sequence, const CallDescriptor& for_call) {
  while (published_ <= sequence) {
    std::shared_ptr<Work> after;
    {
      const Lock lock(locked_, Lock::Wait::kYes);
      publish();
      if (published_ < end_) after = entry(published_).collective.after;
    }
    member_.throw_if_failed(for_call);
    if (after == nullptr) continue;
    try {
      after->wait();
    } catch (const CommError&) {  // publish() finds it, too
    }
  }
}

}  // namespace tessera::internal::shm
