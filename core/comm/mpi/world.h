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
#include <utility>
#include <vector>

#include "tessera/core/comm/flight_recorder/flight_recorder.h"
#include "tessera/core/comm/group/host_ranks.h"
#include "tessera/core/comm/group/member.h"
#include "tessera/core/comm/mpi/envelope.h"
#include "tessera/core/comm/mpi/exchange.h"
#include "tessera/core/process/fork.h"

namespace tessera::internal::mpi {

class Link;

/// The cause of what is under way, or comes, when MPI is no more.
inline constexpr const char* kFinalised = "MPI has been finalised";

/// What all groups of one rank share: the communicator, and the envelopes that come and go on it.
/// What is not marked otherwise is the progress thread's.
class World : public std::enable_shared_from_this<World> {
 public:
  using Clock = std::chrono::steady_clock;

  /// Where a rank is: its process, and what its host is called.
  struct Place {
    int pid = 0;
    std::string host;
  };

  /// Any thread. Of the ranks of `comm`, which is duplicated: begin().
  World(const Calls& calls, Handle comm, Member::Patience patience)
      : calls_(calls), comm_(comm), patience_(patience) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Any thread.

  /// The process of the rank.
  const Origin& origin() const { return origin_; }
  Member::Patience patience() const { return patience_; }
  /// Whether begin() is over: all ranks have called it. Then rank() and size() are known.
  bool is_ready() const { return ready_.load(std::memory_order_acquire); }
  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  /// Why calls fail; "" if they do not.
  std::string failure() const;
  /// The rank whose earlier calls may still end well; -1: none may.
  int author_of_failure() const { return author_.load(std::memory_order_relaxed); }
  /// Sets that, or as much of it as others hear; false if there was a cause before.
  bool set_failure(std::string_view cause, int author = -1);
  /// Says where ranks are, for messages.
  void set_places(std::vector<Place> places);
  /// {} if that is not known.
  Place place(int rank) const;
  /// " (pid 7 on nodeB)"; "" if that is not known.
  std::string place_of(int rank) const;
  /// Whether it is known to be on this rank's host, as another process.
  bool is_neighbour(int rank) const;
  /// This rank's flight recorder: its host's, if there is one.
  std::shared_ptr<FlightRing> flights() const;
  /// The ranks of its host, which fail with this world, and it with them.
  void watch(std::weak_ptr<HostRanks> host);
  std::shared_ptr<HostRanks> host() const;
  /// A group of this rank has been made, which add() is going to be called for: until then this
  /// rank does not leave, though its other groups go.
  void note_made() { made_groups_.fetch_add(1); }

  // The progress thread's part.

  /// Collective, does not block: duplicates the communicator.
  void begin();
  Communicator& communicator() { return *communicator_; }
  void send(const Envelope& envelope, int to);
  void send_to_others(const Envelope& envelope);
  /// A group of this rank, until Link::is_over().
  void add(const std::shared_ptr<Member>& member, Link& link);
  /// Looks at it until it is over.
  void keep(std::shared_ptr<Exchange> exchange) { kept_.push_back(std::move(exchange)); }
  /// Takes data that comes with a message which nobody receives, or its sender would keep it.
  void drain(int from, const Envelope& message);
  /// Writes down this rank's calls, where TESSERA_FLIGHT_DUMP says so; once.
  void dump_flights(std::string_view cause);
  /// Tells the others the cause of failure.
  void tell_failure();
  /// One of its groups has failed, and the others of that may never leave.
  void note_failed_group(const std::string& cause) { failed_group_ = cause; }
  /// The failure of the world or of one of its groups; "" if there was none.
  std::string any_failure() const {
    const std::string cause = failure();
    return cause.empty() ? failed_group_ : cause;
  }
  /// What is under way here fails at once; the others are not told.
  void end_calls(std::string_view cause);
  /// This rank leaves: tells the others when its calls under way are over and none of them may read
  /// of it any more.
  void end();
  /// This rank makes no more calls, because of `cause`: the others, who may wait for one, hear it
  /// of every group.
  void make_no_calls(const char* cause);

  /// Runs it; what it throws fails the world, because the others wait for this rank.
  template <typename Body>
  void guard(Body&& body) {
    try {
      body();
    } catch (const Fault&) {  // which it has failed with
    } catch (const std::exception& error) {
      fail_by(error);
    }
  }
  /// Goes on with what is under way; whether anything moved.
  bool advance(Clock::time_point now);
  /// Whether it has to be looked at.
  bool is_busy() const;
  /// Whether one of its groups is to leave.
  bool is_closing() const;
  /// Whether a call may end. Where an application may call MPI as soon as it has, the thread must
  /// be through with all that it sends.
  bool has_sent() const;
  /// Whether others may want something of it at any time.
  bool is_asked() const;
  /// Whether MPI has no more to do with it: all ranks have ended.
  bool is_retired() const { return retired_; }
  /// Ends the other ranks, too.
  void abort_all();

 private:
  static constexpr size_t kReceives = 8;
  /// One that comes or goes.
  struct UnderWay {
    Handle request = 0;
    Envelope envelope;
  };
  struct Group {
    std::shared_ptr<Member> member;
    Link* link;
  };

  void fail_by(const std::exception& error);
  void take_failure(int from, const Envelope& envelope);
  void look_at_host(Clock::time_point now);
  void fail_if_lost();
  void await_cause();
  void fail_host();
  void look();
  void get_ready();
  void await_envelope(UnderWay& incoming);
  void dispatch(int from, const Envelope& envelope);
  void advance_groups(Clock::time_point now);
  void end_unless_needed(Clock::time_point now);
  void look_at_outgoing();
  void retire(Clock::time_point now);

  const Origin origin_;
  const Calls& calls_;
  const Handle comm_;
  const Member::Patience patience_;
  std::atomic<bool> ready_{false};
  std::atomic<bool> has_failed_{false};
  std::atomic<int> author_{-1};
  std::atomic<int> made_groups_{0};  // that are not in groups_ yet
  mutable std::mutex mutex_;
  std::string failure_;
  std::vector<Place> places_;
  std::weak_ptr<HostRanks> host_;

  Handle made_ = 0;
  Handle making_ = 0;
  bool is_making_ = false;
  std::optional<Communicator> communicator_;
  std::array<UnderWay, kReceives> incoming_;
  size_t next_ = 0;  // of them, as MPI fills them in this order
  bool is_looking_ = false;
  std::list<UnderWay> outgoing_;
  std::list<std::shared_ptr<Exchange>> kept_;
  std::map<uint64_t, Group> groups_;                 // by key
  std::map<uint64_t, std::vector<Received>> early_;  // for groups that this rank has not made
  std::set<uint64_t> gone_;
  std::set<int> ended_ranks_;
  Clock::time_point next_look_for_trouble_;
  std::string failed_group_;
  Clock::time_point next_look_at_host_;
  Clock::time_point host_fails_at_ = Clock::time_point::max();
  const std::string flight_directory_ = flight_dump_directory();  // "": nothing is written
  const std::shared_ptr<FlightRing> flights_ = std::make_shared<FlightRing>();
  bool has_dumped_ = false;
  bool is_leaving_ = false;
  Clock::time_point patient_until_;  // while leaving, for what is under way
  bool ended_ = false;
  bool retired_ = false;
};

}  // namespace tessera::internal::mpi
