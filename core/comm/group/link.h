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
  int64_t calls = 0;     ///< those with smaller numbers may still end well, within kGrace
  int author = kNobody;  ///< who has failed the world: what it has begun may end well, too
};

/// What a part of a call throws when the ranks cannot go on: the group fails with this cause. Its
/// Member catches it.
struct Fault {
  std::string cause;
  int culprit = Failure::kNobody;  ///< the rank of the group that began it
  bool is_of_world = false;        ///< all groups that were made of the world fail
};

/// This rank's part in moving the data of a call. It begins when the ranks' calls were found equal;
/// of a message, at once.
class Transfer {
 public:
  enum class State : uint8_t {
    kMoving,
    kGiven,  ///< what is left is the others' to do, so the group's next call may begin
    kOver,
  };

  virtual ~Transfer() = default;

  /// Tells the others what this rank calls, and where its data is. Not of a message.
  virtual void announce() {}
  /// Goes on as far as it can without waiting. Throws Fault.
  virtual State advance() = 0;
  /// The ranks of the group whose part this one waits for.
  virtual std::vector<int> awaited() = 0;
};

/// A message that has come to this rank.
struct Arrival {
  int from = 0;
  CallRecord record;
  void* place = nullptr;  ///< where the link has it
  at::Tensor copy = {};   ///< of one to itself, which the link does not have
};

/// One rank's end of what connects the ranks of one group. A Group numbers and compares calls,
/// matches messages, watches the time and fails; a link carries what ranks say and their data. All
/// of it is local. Nothing waits for what ranks do but rest(); a look at a rank that is ending may
/// take some seconds. One thread at a time uses it, but where "any
/// thread" is said.
class Link {
 public:
  virtual ~Link() = default;

  // What it is. Any thread.

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view backend() const = 0;
  virtual Capabilities can() const = 0;
  /// The process of the rank.
  virtual const Origin& origin() const = 0;
  /// As ProcessGroup::allocate().
  virtual at::Tensor allocate(int64_t numel, at::ScalarType dtype) = 0;
  /// Whether a posted call with this input goes on while its rank does something else.
  virtual bool is_in_place(const at::Tensor& tensor) const = 0;
  /// Whether a thread of its own goes on with the group, of all groups of a world the same one: it
  /// calls Member::go_on(), looks for trouble now and then, and keeps the Member until this rank
  /// has left. Whatever any thread may not do, leave(), too, is that thread's then.
  virtual bool has_thread() const { return false; }
  /// Whether the group needs a thread that goes on with its calls, whatever its options say: a call
  /// has stages that wait for each other, and would keep the caller.
  virtual bool wants_thread() const { return false; }
  /// As ProcessGroup::make_shared_buffer(), over `group`, which this is the link of.
  virtual std::unique_ptr<SharedBuffer> make_shared_buffer(ProcessGroup& /*group*/,
                                                           int64_t /*bytes*/,
                                                           std::string_view /*name*/) {
    return nullptr;
  }

  // Calls, in the order of their numbers, which are announced once this rank has come to them.

  /// Whether call `call` may be announced while `under_way` earlier ones are not over.
  virtual bool may_announce(const Call& call, int64_t under_way) const = 0;
  /// This rank's part in a call. If that makes a link or a window, it puts it into Call::made().
  virtual std::unique_ptr<Transfer> prepare(Call& call) = 0;
  /// What a rank has announced as call number `sequence`; null if nothing is known of it. Valid
  /// until this rank's call is over.
  virtual const CallRecord* record_of(int rank, int64_t sequence) const = 0;
  /// Whether all ranks have.
  virtual bool have_all_called(int64_t sequence) const = 0;
  /// This rank's call number `sequence` is over.
  virtual void note_over(int64_t sequence) = 0;
  /// The call is given up. Keeps what peers may still read or write.
  virtual void abandon(std::unique_ptr<Transfer> transfer, const Collective& collective) = 0;
  /// A call or a message fails, and is abandoned if it has begun.
  void give_up(Call& call, const std::string& cause);

  // Messages.

  /// What carries them instead of this link, if something does.
  virtual Member* messages() { return nullptr; }
  /// Over when the tensor may be changed; null if that is at once: up to
  /// ProcessGroup::kBufferedBytes are copied.
  virtual std::unique_ptr<Transfer> send(const Call& call) = 0;
  /// Each message once, in the order in which its sender has sent them.
  virtual std::optional<Arrival> next_arrival() = 0;
  /// Brings it into the tensor of the call, whose record fits; null if it is there at once.
  virtual std::unique_ptr<Transfer> receive(const Arrival& arrival, const Call& call) = 0;
  /// It is never received.
  virtual void drop(const Arrival& /*arrival*/) {}

  /// Goes on with what is neither a call's part nor a message, as reads. Throws Fault.
  virtual void go_on() {}

  // What is known of the ranks.

  /// What the job calls it.
  virtual int number_of(int rank) const = 0;
  /// "rank 1", or "rank 3 of the world" where its number there is another one.
  std::string name_of(int rank) const;
  std::string own_name() const { return name_of(rank()); }
  /// " (pid 7 on nodeB)"; "" if unknown.
  virtual std::string place_of(int /*rank*/) const { return ""; }
  /// What its process does, such as "is stopped (SIGSTOP)"; "" if it is unknown.
  virtual std::string activity_of(int /*rank*/) const { return ""; }
  /// How many calls the rank has begun, and finished, as far as is known. The first: any thread, of
  /// a link that has one.
  virtual int64_t called_by(int rank) const = 0;
  virtual int64_t finished_by(int rank) const = 0;
  /// Whether it has left the group.
  virtual bool has_left(int rank) const = 0;
  /// Its last calls.
  virtual RankFlight flight_of(int rank) const = 0;
  /// This rank's own.
  virtual std::shared_ptr<FlightRing> flights() const = 0;
  /// The first two of the ranks' calls with this number that differ, of those that are known:
  /// "rank 1 called ... where rank 0 called ..."; or two that ask for one slice. "" if none do.
  /// Equal on all ranks when all are known.
  std::string difference(int64_t sequence) const;
  /// Whether the rank is known to be in another call than this one.
  bool is_in_other_call(int rank, const Call& call) const;
  /// Warns of a call that has waited long: for which ranks, and where those were last seen.
  void report_wait(Call& call, const std::vector<int>& missing, Call::Clock::time_point now,
                   std::chrono::milliseconds timeout) const;
  /// How much longer than the time-out this rank waits for that one: another rank knows better who
  /// is missing, and shall name it first.
  virtual std::chrono::milliseconds extra_patience(int /*rank*/, const Call& /*call*/) const {
    return {};
  }
  virtual std::shared_ptr<HostRanks> host_ranks() { return nullptr; }
  virtual void watch(std::weak_ptr<HostRanks> /*host*/) {}

  // Note [Failure]
  // ~~~~~~~~~~~~~~
  // A group that has failed stays failed, on every rank and with the first cause. A failure says
  // how many calls its author had finished: what others have begun of these, or of those that the
  // author has begun since, may have finished elsewhere, so they may finish for kGrace, and only
  // then throw; later ones throw with them, or at once. So may whatever a
  // group has begun that the author is no rank of. After a death nothing is waited for: a call ends
  // well only if all that it needs has come by then.
  // fail() fails one group, fail_world() all that were made of one world.

  static constexpr auto kGrace = std::chrono::seconds(1);

  /// Any thread. Whether it has failed; cheap.
  virtual bool has_failed() const = 0;
  virtual Failure failure() const = 0;
  /// Any thread. Returns whether this was the first failure.
  virtual bool fail(const Failure& failure) noexcept = 0;
  /// Tells the launcher, too.
  virtual bool fail_world(std::string_view cause) noexcept = 0;
  /// This rank is going to throw the failure: who may not have heard of it hears it before.
  virtual void pass_on_failure() noexcept {
    const Failure known = failure();
    if (known.author != Failure::kNobody) fail_world(known.cause);
  }
  /// Looks whether the process of a rank has ended, and fails the world if so. `describe` makes of
  /// a cause what the launcher is told.
  virtual void look_for_dead(const std::function<std::string(const std::string&)>& /*describe*/) {}
  /// Of all ranks, as far as this one knows them, once; where TESSERA_FLIGHT_DUMP says.
  virtual void dump_flights(std::string_view /*cause*/) noexcept {}

  // The end.

  /// This rank makes no more calls: who waits for one hears it. Any thread, unless the link has
  /// one.
  virtual void leave() noexcept = 0;

  // How a thread of this rank waits for what peers do.

  struct Rest {
    int looks = 0;
    uint32_t seen = 0;
    bool is_slow = false;  ///< enough looks were in vain, so that what is wrong is looked for
    bool is_asleep = false;
  };
  /// Before each look whether something has come.
  virtual void before_look(Rest& rest) = 0;
  /// After a look in vain: blocks until a peer has done something, or for some milliseconds.
  virtual void rest(Rest& rest) = 0;
  /// After the last look.
  virtual void end_rest(Rest& /*rest*/) {}
  /// Any thread. Wakes the threads of this rank that rest.
  virtual void wake() = 0;
  /// From now on whoever waits in another group of the world goes on with this one, too. Once.
  virtual void attach(std::weak_ptr<Member> member) = 0;
  /// This group has something under way, or nothing any more.
  virtual void note_busy(bool /*is_busy*/) {}
  /// Goes on with the groups of the world, of which this one has something under way.
  virtual void advance_others() = 0;
};

}  // namespace tessera::internal
