#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/flight_recorder/flight_recorder.h"
#include "tessera/core/comm/group/call.h"
#include "tessera/core/comm/group/host_ranks.h"
#include "tessera/core/comm/groups/remote_memory.h"
#include "tessera/core/process/fork.h"
#include "tessera/process_group.h"
#include "tessera/work.h"

namespace tessera::internal {

/// Why a group has failed. See Note [Failure].
struct Failure {
  static constexpr int kNobody = -1;
  static constexpr int kOutsider = -2;  ///< `author` is outside the group

  std::string cause;
  int64_t calls = 0;  ///< calls with smaller numbers may still end well, within Link::kGrace
  /// The rank that failed the world; calls that it has begun may still end well. kNobody if only
  /// this group has failed, or if no rank is the author, as after a death.
  int author = kNobody;
};

/// Thrown when a call cannot continue. The Member then fails the group with this cause.
struct Fault {
  std::string cause;
  int culprit = Failure::kNobody;  ///< the rank that caused the fault, as numbered in the group
  bool is_of_world = false;        ///< true: all groups made from the world fail, too
};

/// This rank's part in moving a call's data. The first advance() comes after the ranks' calls were
/// compared and found equal; for a message, immediately.
class Transfer {
 public:
  enum class State : uint8_t {
    kMoving,
    kGiven,  ///< the rest is up to other ranks, so the group's next call may begin
    kOver,
  };

  virtual ~Transfer() = default;

  /// Tells the other ranks what this rank calls, and where its data is. Not for messages.
  virtual void announce() {}
  /// Moves data as far as possible without waiting. Throws Fault.
  virtual State advance() = 0;
  /// Returns the ranks of the group that this rank waits for.
  virtual std::vector<int> awaited() = 0;
};

/// A message that has arrived at this rank.
struct Arrival {
  int from = 0;
  CallRecord record;
  void* place = nullptr;  ///< where the link keeps the message
  at::Tensor copy = {};   ///< the message, if this rank sent it to itself; `place` is then null
};

/// One rank's end of the connection between the ranks of a group. A Group numbers and compares
/// calls, matches messages, enforces time-outs and applies failures. A Link carries the ranks'
/// calls and data. All functions are local. Only rest() waits for other ranks, but a function that
/// looks at a rank whose process is ending may take some seconds. One thread at a time, except
/// where a comment says "any thread".
class Link {
 public:
  virtual ~Link() = default;

  // Properties of the link. Any thread.

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view backend() const = 0;
  virtual Capabilities can() const = 0;
  /// This rank's process.
  virtual const Origin& origin() const = 0;
  /// See ProcessGroup::allocate().
  virtual at::Tensor allocate(int64_t numel, at::ScalarType dtype) = 0;
  /// Returns true if a posted call whose input is `tensor` makes progress while this rank does
  /// something else.
  virtual bool is_in_place(const at::Tensor& tensor) const = 0;
  /// Returns true if the link has its own thread, which serves all groups of a world. The thread
  /// calls Member::go_on(), looks for trouble now and then, and keeps the Member until this rank
  /// has left. If there is such a thread, only it calls leave() and the functions that are not
  /// marked "any thread".
  virtual bool has_thread() const { return false; }
  /// Returns true if the group needs a thread for its calls whatever its options say, because the
  /// stages of a call wait for each other and would block the caller.
  virtual bool wants_thread() const { return false; }
  /// See ProcessGroup::make_shared_buffer(). `group` is the group over this link.
  virtual std::unique_ptr<SharedBuffer> make_shared_buffer(ProcessGroup& /*group*/,
                                                           int64_t /*bytes*/,
                                                           std::string_view /*name*/) {
    return nullptr;
  }

  // Calls. A rank announces its calls one after the other, in the order of their numbers.

  /// Returns true if `call` may be announced while `under_way` calls before it are announced and
  /// not over.
  virtual bool may_announce(const Call& call, int64_t under_way) const = 0;
  /// Returns this rank's part in a call. A link or window that the call makes goes into
  /// Call::made().
  virtual std::unique_ptr<Transfer> prepare(Call& call) = 0;
  /// Returns the record of the call that `rank` has announced with number `sequence`; null if it is
  /// not known. The pointer is valid until this rank's call with that number is over.
  virtual const CallRecord* record_of(int rank, int64_t sequence) const = 0;
  /// Returns true if all ranks have announced call number `sequence`.
  virtual bool have_all_called(int64_t sequence) const = 0;
  /// Notes that this rank's call number `sequence` is over.
  virtual void note_over(int64_t sequence) = 0;
  /// Gives up a call that has failed. Keeps its tensors alive, because peers may still read or
  /// write their memory.
  virtual void abandon(std::unique_ptr<Transfer> transfer, const Collective& collective) = 0;
  /// Ends `call`, a collective or a message, with the error `cause`. If its transfer exists,
  /// abandons that first.
  void give_up(Call& call, const std::string& cause);

  // Messages.

  /// Returns the Member that carries messages instead of this link; null if this link carries them.
  virtual Member* messages() { return nullptr; }
  /// Starts a send. The returned transfer is over when the tensor may be changed. Returns null for
  /// tensors of up to ProcessGroup::kBufferedBytes, which are copied at once and may be changed
  /// already.
  virtual std::unique_ptr<Transfer> send(const Call& call) = 0;
  /// Returns the next message that has arrived; nullopt if there is none. Messages from one sender
  /// come in the order in which they were sent.
  virtual std::optional<Arrival> next_arrival() = 0;
  /// Begins to move a message into the output of `call`; the caller has checked that the message
  /// fits. Returns the transfer that moves the rest; null if all data is there already.
  virtual std::unique_ptr<Transfer> receive(const Arrival& arrival, const Call& call) = 0;
  /// Drops a message that will never be received.
  virtual void drop(const Arrival& /*arrival*/) {}

  /// Advances work that belongs to no call and no message, such as window reads. Throws Fault.
  virtual void go_on() {}

  // Knowledge about the ranks.

  /// Returns the rank's number in the job.
  virtual int number_of(int rank) const = 0;
  /// Returns "rank 1", or "rank 3 of the world" if its number there differs.
  std::string name_of(int rank) const;
  std::string own_name() const { return name_of(rank()); }
  /// Returns " (pid 7 on nodeB)"; "" if it is unknown.
  virtual std::string place_of(int /*rank*/) const { return ""; }
  /// Returns what the rank's process is doing, such as "is stopped (SIGSTOP)"; "" if it is unknown.
  virtual std::string activity_of(int /*rank*/) const { return ""; }
  /// Return how many calls the rank has begun (called_by()) or finished (finished_by()), as far as
  /// this rank knows. If the link has a thread, any thread may call called_by().
  virtual int64_t called_by(int rank) const = 0;
  virtual int64_t finished_by(int rank) const = 0;
  /// Returns true if the rank has left the group.
  virtual bool has_left(int rank) const = 0;
  /// Returns the rank's last calls.
  virtual RankFlight flight_of(int rank) const = 0;
  /// Returns this rank's own flight recorder.
  virtual std::shared_ptr<FlightRing> flights() const = 0;
  /// Compares the ranks' calls with number `sequence`, as far as this rank knows them. Describes
  /// the first two that differ ("rank 1 called ... where rank 0 called ...") or that ask for the
  /// same slice; returns "" if there are none. All ranks get the same text once all calls are
  /// known.
  std::string difference(int64_t sequence) const;
  /// Returns true if the rank is known to be in a call other than `call`.
  bool is_in_other_call(int rank, const Call& call) const;
  /// Warns that `call` has waited long for the `missing` ranks, and says where they were last seen.
  void report_wait(Call& call, const std::vector<int>& missing, Call::Clock::time_point now,
                   std::chrono::milliseconds timeout) const;
  /// Returns how much longer than the time-out this rank waits for `rank`. Another rank may know
  /// better which rank is missing. The extra time lets it name the missing rank first.
  virtual std::chrono::milliseconds extra_patience(int /*rank*/, const Call& /*call*/) const {
    return {};
  }
  virtual std::shared_ptr<HostRanks> host_ranks() { return nullptr; }
  virtual void watch(std::weak_ptr<HostRanks> /*host*/) {}

  // Note [Failure]
  // ~~~~~~~~~~~~~~
  // A group that has failed stays failed, on every rank and with the first cause. fail() fails one
  // group, fail_world() all groups made from one world.
  //
  // A call may end well on one rank although the group has failed. So the other ranks have kGrace
  // to finish that call before they throw. After a failure of the group, they get this time for the
  // calls that the failure's author has finished (Failure::calls). After a failure of the world,
  // they get it for the calls that the author has begun (Failure::author), or for all begun calls
  // if the author is outside the group. All other calls, and all messages, throw at once. After a
  // death no rank waits: a call ends well only if everything that it needs has arrived by then.

  static constexpr auto kGrace = std::chrono::seconds(1);

  /// Any thread. Returns true if the group has failed; cheap.
  virtual bool has_failed() const = 0;
  virtual Failure failure() const = 0;
  /// Any thread. Fails the group. Returns true if this is the group's first failure.
  virtual bool fail(const Failure& failure) noexcept = 0;
  /// Any thread. Fails the world, and tells the launcher. Returns true if this is the world's first
  /// failure.
  virtual bool fail_world(std::string_view cause) noexcept = 0;
  /// Reports the failure to the ranks that may not know it yet. Called before this rank throws the
  /// failure's error.
  virtual void pass_on_failure() noexcept {
    const Failure known = failure();
    if (known.author != Failure::kNobody) fail_world(known.cause);
  }
  /// Fails the world if the process of a rank has ended. `describe` makes the text for the launcher
  /// from the failure's cause.
  virtual void look_for_dead(const std::function<std::string(const std::string&)>& /*describe*/) {}
  /// Writes the ranks' last calls, as far as known, to the directory in TESSERA_FLIGHT_DUMP. Only
  /// the first call does so.
  virtual void dump_flights(std::string_view /*cause*/) noexcept {}

  // How this rank leaves.

  /// Tells the waiting ranks that this rank makes no more calls. Any thread, unless the link has
  /// its own thread.
  virtual void leave() noexcept = 0;

  // How a thread of this rank waits for peers.

  struct Rest {
    int looks = 0;
    uint32_t seen = 0;
    bool is_slow = false;  ///< true: many looks found nothing, so it is time to look for trouble
    bool is_asleep = false;
  };
  /// Called before each look for something new.
  virtual void before_look(Rest& rest) = 0;
  /// Called after a look that found nothing to do. Blocks until a peer has done something, or for
  /// some milliseconds.
  virtual void rest(Rest& rest) = 0;
  /// Called after the last look.
  virtual void end_rest(Rest& /*rest*/) {}
  /// Any thread. Wakes the threads of this rank that are in rest().
  virtual void wake() = 0;
  /// From now on, threads of this rank that wait in other groups of the world advance this group,
  /// too. Call it once.
  virtual void attach(std::weak_ptr<Member> member) = 0;
  /// Notes whether this group has something under way.
  virtual void note_busy(bool /*is_busy*/) {}
  /// Advances the world's other groups. Requires that this group has something under way.
  virtual void advance_others() = 0;
};

}  // namespace tessera::internal
