#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/groups/host_ranks.h"
#include "tessera/core/comm/mpi/call.h"
#include "tessera/core/comm/mpi/envelope.h"
#include "tessera/core/comm/mpi/flights.h"
#include "tessera/core/comm/mpi/link.h"
#include "tessera/core/process/fork.h"

namespace tessera::internal::mpi {

class Member;

/// The cause of what is under way, or comes, when MPI is no more.
inline constexpr const char* kFinalised = "MPI has been finalised";

/// What all groups of one rank share: the communicator, and the envelopes that come and go on it.
/// What is not marked otherwise is the progress thread's.
class World : public std::enable_shared_from_this<World> {
 public:
  using Clock = std::chrono::steady_clock;
  /// Note [Failures overtake data]
  static constexpr auto kDoomed = std::chrono::seconds(1);

  /// Where a rank is: its process, and what its host is called.
  struct Place {
    int pid = 0;
    std::string host;
  };

  /// Any thread. Of the ranks of `comm`, which is duplicated: begin().
  World(const Calls& calls, Handle comm, Call::Patience patience)
      : calls_(calls), comm_(comm), patience_(patience) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Any thread.

  /// The process of the rank.
  const Origin& origin() const { return origin_; }
  Call::Patience patience() const { return patience_; }
  /// Whether begin() is over: all ranks have called it. Then rank() and size() are known.
  bool is_ready() const { return ready_.load(std::memory_order_acquire); }
  int rank() const { return link_->rank(); }
  int size() const { return link_->size(); }
  /// Why calls fail; "" if they do not.
  std::string failure() const;
  /// Sets that; false if there was a cause before.
  bool set_failure(const std::string& cause);
  /// Bytes of data that this rank has sent, without envelopes.
  int64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_relaxed); }
  /// Says where ranks are, for messages.
  void set_places(std::vector<Place> places);
  /// " (pid 7 on nodeB)"; "" if that is not known. The parts: 0 and "".
  std::string place_of(int rank) const;
  int pid_of(int rank) const;
  std::string host_of(int rank) const;
  /// This rank's flight recorder.
  const std::shared_ptr<FlightRing>& ring() const { return flights_.ring(); }

  // The progress thread's part.

  /// Collective, does not block: duplicates the communicator.
  void begin();
  Link& link() { return *link_; }
  void send(const Envelope& envelope, int to);
  void send_to_others(const Envelope& envelope);
  void add(const std::shared_ptr<Member>& member);
  /// Whether rank `rank` has left.
  bool has_ended(int rank) const { return ended_ranks_.count(rank) != 0; }
  /// The ranks that have not left, and what they do, as far as is known here: "rank 1 (pid 7 on
  /// nodeB), which runs (sleeps)"; "" if all have.
  std::string ranks_that_stay() const;
  /// Looks at `exchange`, which `owner` keeps, until it is over.
  void keep(Exchange& exchange, std::shared_ptr<void> owner);
  /// Takes data that comes with a message which nobody receives, or its sender would keep it.
  void drain(int from, const Envelope& message);
  void count_sent(int64_t bytes) { sent_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  Flights& flights() { return flights_; }
  /// Tells the others the cause of failure, and fails what is under way.
  void tell_failure();
  /// One of its groups has failed, and the others of that may never leave.
  void note_failed_group(const std::string& cause) { failed_group_ = cause; }
  /// The failure of the world or of one of its groups; "" if there was none.
  std::string any_failure() const {
    const std::string cause = failure();
    return cause.empty() ? failed_group_ : cause;
  }
  /// Fails what is under way here; the others are not told.
  void end_calls(const std::string& cause);
  /// This rank leaves: tells the others when its calls under way are over and none of them may read
  /// of it any more.
  void end();
  /// This rank makes no more calls: the others, who may wait for one, hear it of every group.
  void make_no_calls();
  /// Fails when a rank of this host is lost, and they with it.
  void watch(std::weak_ptr<HostRanks> host) { host_ = std::move(host); }

  /// Runs it; what it throws fails the world, because the others wait for this rank.
  template <typename Body>
  void guard(Body&& body) {
    try {
      body();
    } catch (const std::exception& error) {
      fail_by(error);
    }
  }
  /// Goes on with what is under way; whether anything moved.
  bool advance(Clock::time_point now);
  /// Whether it has to be looked at.
  bool is_busy() const;
  /// Whether others may want something of it at any time.
  bool is_asked() const;
  /// Whether MPI has no more to do with it: all ranks have ended.
  bool is_retired() const { return retired_; }
  /// Ends the other ranks, too.
  void abort_all();

 private:
  static constexpr size_t kReceives = 8;
  struct Incoming {
    Handle request = 0;
    Envelope envelope;
  };
  struct Outgoing {
    Handle request = 0;
    Envelope envelope;
  };
  struct Kept {
    Exchange* exchange;
    std::shared_ptr<void> owner;
  };
  struct Early {
    int from;
    Envelope envelope;
  };

  void fail_by(const std::exception& error);
  std::string early_failure() const;
  void take_failure(int from, const Envelope& envelope);
  std::string lost_rank() const;
  void fail_if_lost();
  void look_at_host(Clock::time_point now);
  void await_cause();
  void fail_host();
  bool look();
  void get_ready();
  void await_envelope(Incoming& incoming);
  void dispatch(int from, const Envelope& envelope);
  void dispatch_to_gone(int from, const Envelope& envelope);
  void remove(const Member& member);
  void end_unless_needed(Clock::time_point now);
  bool look_at_outgoing();
  void retire(Clock::time_point now);

  const Origin origin_;
  const Calls& calls_;
  const Handle comm_;
  const Call::Patience patience_;
  std::atomic<bool> ready_{false};
  std::atomic<int64_t> sent_bytes_{0};
  mutable std::mutex mutex_;
  std::string failure_;
  std::vector<Place> places_;

  Handle made_ = 0;
  Handle making_ = 0;
  bool is_making_ = false;
  std::optional<Link> link_;
  std::array<Incoming, kReceives> incoming_;
  size_t next_ = 0;  // of them, as MPI fills them in this order
  std::list<Outgoing> outgoing_;
  std::list<Kept> kept_;
  std::map<uint64_t, std::shared_ptr<Member>> members_;  // by key
  std::map<uint64_t, std::vector<Early>> early_;         // for groups that this rank has not made
  std::set<uint64_t> gone_;
  std::set<int> ended_ranks_;
  std::string failed_group_;
  std::weak_ptr<HostRanks> host_;
  Clock::time_point next_look_at_host_;
  Clock::time_point host_fails_at_ = Clock::time_point::max();
  Flights flights_{*this};
  bool is_leaving_ = false;
  Clock::time_point patient_until_;  // while leaving, for what is under way
  bool ended_ = false;
  bool retired_ = false;
};

}  // namespace tessera::internal::mpi
