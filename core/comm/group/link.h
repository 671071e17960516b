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

/// Why a group has failed. Note [Failure]
struct Failure {
  static constexpr int kNobody = -1;
  static constexpr int kOutsider = -2;  ///< no rank of the group

  std::string cause;
  int64_t calls = 0;     ///< calls with smaller numbers may still end well, within kGrace
  int author = kNobody;  ///< the rank that failed the world: its begun calls may end well, too
};

/// Thrown by a part of a call when the ranks cannot go on. Its Member fails the group with this
/// cause.
struct Fault {
  std::string cause;
  int culprit = Failure::kNobody;  ///< the rank of the group that caused it
  bool is_of_world = false;        ///< fails all groups made from the world
};

/// This rank's part in moving the data of a call. It begins when the calls were found equal; for a
/// message, at once.
class Transfer {
 public:
  enum class State : uint8_t {
    kMoving,
    kGiven,  ///< the rest is up to other ranks, so the group's next call may begin
    kOver,
  };

  virtual ~Transfer() = default;

  /// Tells the others what this rank calls, and where its data is. Not for messages.
  virtual void announce() {}
  /// Goes on as far as it can without waiting. Throws Fault.
  virtual State advance() = 0;
  /// Returns the ranks of the group whose part this one waits for.
  virtual std::vector<int> awaited() = 0;
};

/// A message that has come to this rank.
struct Arrival {
  int from = 0;
  CallRecord record;
  void* place = nullptr;  ///< where the link keeps it
  at::Tensor copy = {};   ///< of a message to itself, which the link does not keep
};

/// One rank's end of the connection between the ranks of a group. A Group numbers and compares
/// calls, matches messages, enforces time-outs and fails; a Link carries what ranks say and their
/// data. All functions are local. Only rest() waits for other ranks; looking at a rank that is
/// ending may take some seconds. One thread at a time, except where "any thread" is said.
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
  /// Returns true if a posted call with this input goes on while its rank does something else.
  virtual bool is_in_place(const at::Tensor& tensor) const = 0;
  /// Returns true if the link has a thread of its own, one for all groups of a world. It calls
  /// Member::go_on(), looks for trouble now and then, and keeps the Member until this rank has
  /// left. Only that thread then makes the calls that are not for any thread, and leave().
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

  // Calls, in the order of their numbers. Each is announced once this rank has come to it.

  /// Returns true if `call` may be announced while `under_way` earlier ones are not over.
  virtual bool may_announce(const Call& call, int64_t under_way) const = 0;
  /// Returns this rank's part in a call. A link or window that the call makes goes into
  /// Call::made().
  virtual std::unique_ptr<Transfer> prepare(Call& call) = 0;
  /// Returns what a rank has announced as call number `sequence`; null if that is not known. Valid
  /// until this rank's call is over.
  virtual const CallRecord* record_of(int rank, int64_t sequence) const = 0;
  /// Returns true if all ranks have announced that call.
  virtual bool have_all_called(int64_t sequence) const = 0;
  /// Notes that this rank's call number `sequence` is over.
  virtual void note_over(int64_t sequence) = 0;
  /// Gives up a call, and keeps the memory that peers may still read or write.
  virtual void abandon(std::unique_ptr<Transfer> transfer, const Collective& collective) = 0;
  /// Fails a call or a message, and abandons it if it has begun.
  void give_up(Call& call, const std::string& cause);

  // Messages.

  /// Returns what carries messages instead of this link; null if nothing does.
  virtual Member* messages() { return nullptr; }
  /// Starts a send. The returned transfer is over when the tensor may be changed. Returns null for
  /// up to ProcessGroup::kBufferedBytes: they are copied, and the tensor may be changed already.
  virtual std::unique_ptr<Transfer> send(const Call& call) = 0;
  /// Returns each message once, in the order in which its sender sent them.
  virtual std::optional<Arrival> next_arrival() = 0;
  /// Moves a message into the tensor of a call that it fits. Returns null if it is there already.
  virtual std::unique_ptr<Transfer> receive(const Arrival& arrival, const Call& call) = 0;
  /// Drops a message that will never be received.
  virtual void drop(const Arrival& /*arrival*/) {}

  /// Advances work that is neither a call's part nor a message, such as reads. Throws Fault.
  virtual void go_on() {}

  // Knowledge about the ranks.

  /// Returns the rank's number in the job.
  virtual int number_of(int rank) const = 0;
  /// "rank 1", or "rank 3 of the world" if its number there differs.
  std::string name_of(int rank) const;
  std::string own_name() const { return name_of(rank()); }
  /// " (pid 7 on nodeB)"; "" if unknown.
  virtual std::string place_of(int /*rank*/) const { return ""; }
  /// Returns what the rank's process is doing, such as "is stopped (SIGSTOP)"; "" if it is unknown.
  virtual std::string activity_of(int /*rank*/) const { return ""; }
  /// Returns how many calls the rank has begun, or finished, as far as is known. called_by(): any
  /// thread, if the link has a thread.
  virtual int64_t called_by(int rank) const = 0;
  virtual int64_t finished_by(int rank) const = 0;
  /// Returns true if the rank has left the group.
  virtual bool has_left(int rank) const = 0;
  /// Returns the rank's last calls.
  virtual RankFlight flight_of(int rank) const = 0;
  /// Returns this rank's own flight recorder.
  virtual std::shared_ptr<FlightRing> flights() const = 0;
  /// Compares the known calls with this number, and describes the first two that differ: "rank 1
  /// called ... where rank 0 called ...", or two that ask for the same slice. "" if none do. Equal
  /// on all ranks once all calls are known.
  std::string difference(int64_t sequence) const;
  /// Returns true if the rank is known to be in another call.
  bool is_in_other_call(int rank, const Call& call) const;
  /// Warns that a call has waited long: for which ranks, and where those were last seen.
  void report_wait(Call& call, const std::vector<int>& missing, Call::Clock::time_point now,
                   std::chrono::milliseconds timeout) const;
  /// Returns how much longer than the time-out this rank waits for `rank`, because another rank
  /// knows better which rank is missing and should name it first.
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
  // A call may end well on one rank although the group has failed, so others may finish it, too,
  // for kGrace, and only then throw. These are the calls that the failure's author has finished (a
  // failure of the group says how many) or begun (a failure of the world says which rank it is),
  // and all begun calls if the author is no rank of the group. All other calls, and messages, throw
  // at once. After a death nothing is waited for: a call ends well only
  // if all that it needs has come by then.

  static constexpr auto kGrace = std::chrono::seconds(1);

  /// Any thread. Returns true if the group has failed; cheap.
  virtual bool has_failed() const = 0;
  virtual Failure failure() const = 0;
  /// Any thread. Returns true if this was the first failure.
  virtual bool fail(const Failure& failure) noexcept = 0;
  /// The same for the world. Also tells the launcher.
  virtual bool fail_world(std::string_view cause) noexcept = 0;
  /// Called before this rank throws the failure: tells the ranks that may not know it yet.
  virtual void pass_on_failure() noexcept {
    const Failure known = failure();
    if (known.author != Failure::kNobody) fail_world(known.cause);
  }
  /// Fails the world if the process of a rank has ended. `describe` makes the launcher's text.
  virtual void look_for_dead(const std::function<std::string(const std::string&)>& /*describe*/) {}
  /// Writes the ranks' last calls, as far as known, where TESSERA_FLIGHT_DUMP says. Once.
  virtual void dump_flights(std::string_view /*cause*/) noexcept {}

  // The end.

  /// This rank makes no more calls; tells ranks that wait. Any thread, unless the link has one.
  virtual void leave() noexcept = 0;

  // How a thread of this rank waits for peers.

  struct Rest {
    int looks = 0;
    uint32_t seen = 0;
    bool is_slow = false;  ///< so many looks were in vain that it is time to look for trouble
    bool is_asleep = false;
  };
  /// Called before each look for something new.
  virtual void before_look(Rest& rest) = 0;
  /// Called after a look that found nothing to do: blocks until a peer has done something, or for
  /// some milliseconds.
  virtual void rest(Rest& rest) = 0;
  /// Called after the last look.
  virtual void end_rest(Rest& /*rest*/) {}
  /// Any thread. Wakes the threads of this rank that are in rest().
  virtual void wake() = 0;
  /// Makes threads that wait in other groups of the world advance this group, too, from now on.
  /// Call it once.
  virtual void attach(std::weak_ptr<Member> member) = 0;
  /// Notes whether this group has something under way.
  virtual void note_busy(bool /*is_busy*/) {}
  /// Goes on with the world's other groups. This group must have something under way.
  virtual void advance_others() = 0;
};

}  // namespace tessera::internal
