#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "tessera/collective.h"
#include "tessera/core/comm/shm/algorithms.h"
#include "tessera/core/comm/shm/exchange.h"
#include "tessera/core/comm/shm/member.h"
#include "tessera/core/comm/shm/progress.h"
#include "tessera/work.h"

namespace tessera::internal::shm {

/// Collectives of one group that this rank has posted and goes on with later.
///
/// Note [Posted calls]
/// ~~~~~~~~~~~~~~~~~~~
/// Where collectives run inside the calls, each is a meeting: who comes first waits. A posted call
/// (Collective::posted) returns when its descriptor is in the ring of calls. A rank does its part
/// of a call once all have posted it (`posted`) and it has done those before; it says so
/// (`done`), and the call has finished when all are done with it. Nothing waits in between: the
/// rank looks again when it asks one of these calls whether it has finished, and whenever it waits
/// for anything in any group of its world (Progress), so whoever waits goes on with what others
/// wait for. A rank that computes for long makes its parts late, and that is all it does.
///
/// A call that goes on with another group's (Collective::after) is put into the ring as well, but
/// its descriptor is published, in the order of calls, when that one has finished.
///
/// The order of a group's calls is one: other calls are made only when all posted ones have
/// finished, and are compared at the same places. Where a rank has made the call without posting it
/// (its memory is private, say), the call has phases, for which all ranks meet: inside wait() or
/// the next other call of the group.
///
/// Parts are done by whoever holds the lock: the thread that uses the group or one that waits
/// in another group. What goes wrong there poisons the group, and its own next call throws it.
/// Memory of calls that did not finish is kept until the rank leaves the world, because a slow peer
/// may be writing to it.
class PostedRing final : public Progress::Source {
 public:
  /// References must outlive it. Used by the thread that uses the group, except for advance().
  PostedRing(Member& member, Exchange& exchange);
  ~PostedRing() override;
  PostedRing(const PostedRing&) = delete;
  PostedRing& operator=(const PostedRing&) = delete;

  /// Posts a call whose memory is in the arena. Blocks while ChannelSlot::kCalls calls are under
  /// way. Throws CommError if the group has failed.
  std::shared_ptr<Work> post(const Collective& collective, Algorithm algorithm);

  /// Blocks until all posted calls have finished; throws CommError where one failed.
  void finish();

  void advance() noexcept override { advance(Blocking::kNever); }

 private:
  class PostedWork;
  enum class Blocking : uint8_t { kNever, kForPhases };

  struct Entry {
    Collective collective;
    CallDescriptor call;
    Algorithm algorithm = nullptr;
    std::shared_ptr<PostedWork> work;
  };

  Entry& entry(int64_t sequence) { return entries_[sequence % ChannelSlot::kCalls]; }
  void put(const Collective& collective, const CallDescriptor& call, Algorithm algorithm);
  void publish();
  void publish_up_to(int64_t sequence, const CallDescriptor& for_call);
  void advance(Blocking blocking) noexcept;
  bool take_part(Entry& entry, Blocking blocking);
  template <typename Body>
  bool run_or_fail(const Entry& entry, Body&& body);
  void retire();
  void finish(int64_t sequence);

  Member& member_;
  Exchange& exchange_;
  std::atomic<bool> locked_{false};  // no mutex: a child of fork() may find it held
  // Sequence numbers: calls in [first_, next_) are not finished, those in [next_, end_) not begun,
  // those in [published_, end_) not published.
  std::atomic<int64_t> first_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> published_{0};
  std::atomic<int64_t> end_{0};
  std::array<Entry, ChannelSlot::kCalls> entries_;
};

}  // namespace tessera::internal::shm
