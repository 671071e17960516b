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

/// Why calls fail if they are under way when MPI is finalised, or begin later.
inline constexpr const char* kFinalised = "MPI has been finalised";

/// State that all groups of one rank share: the communicator, and the envelopes sent and received
/// on it. Used by the progress thread, except where a comment says otherwise.
class World : public std::enable_shared_from_this<World> {
 public:
  using Clock = std::chrono::steady_clock;

  /// A rank's process and the name of its host.
  struct Place {
    int pid = 0;
    std::string host;
  };

  /// Any thread. Makes the world of the ranks of `comm`, which begin() duplicates.
  World(const Calls& calls, Handle comm, Member::Patience patience)
      : calls_(calls), comm_(comm), patience_(patience) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Any thread may call the functions below.

  /// Returns the process that has made this world.
  const Origin& origin() const { return origin_; }
  Member::Patience patience() const { return patience_; }
  /// Returns true once all ranks have called begin(). Then rank() and size() are known.
  bool is_ready() const { return ready_.load(std::memory_order_acquire); }
  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  /// Returns the cause of the world's failure; "" if the world has not failed.
  std::string failure() const;
  /// Returns the rank that failed the world; calls that it had begun before may still end well.
  /// Returns -1 if no call may end well.
  int author_of_failure() const { return author_.load(std::memory_order_relaxed); }
  /// Fails the world with `cause`, cut to Envelope::kCauseBytes. `author`: see author_of_failure().
  /// Returns false, and changes nothing, if the world had failed before.
  bool set_failure(std::string_view cause, int author = -1);
  /// Sets the place (host and process) of every rank, which error texts name.
  void set_places(std::vector<Place> places);
  /// Returns the place of `rank`, or {} if it is not known.
  Place place(int rank) const;
  /// Returns " (pid 7 on nodeB)", or "" if the place is not known.
  std::string place_of(int rank) const;
  /// Returns true if the rank is known to be another process of this rank's host.
  bool is_neighbour(int rank) const;
  /// Returns the flight recorder in which this rank's calls are noted: that of host() if it exists,
  /// else the world's own.
  std::shared_ptr<FlightRing> flights() const;
  /// Sets the group that the ranks of this host form. If these ranks fail, this world fails, and
  /// vice versa.
  void watch(std::weak_ptr<HostRanks> host);
  std::shared_ptr<HostRanks> host() const;
  /// Notes that this rank has made a group, for which add() will be called. Until then this rank
  /// does not leave the world, even if all its other groups are destroyed.
  void note_made() { made_groups_.fetch_add(1); }

  // Only the progress thread may call the functions below.

  /// Collective, does not block: duplicates the communicator.
  void begin();
  Communicator& communicator() { return *communicator_; }
  void send(const Envelope& envelope, int to);
  void send_to_others(const Envelope& envelope);
  /// Adds a group of this rank. The group is removed once Link::is_over().
  void add(const std::shared_ptr<Member>& member, Link& link);
  /// Keeps `exchange`, and tests it until all its messages have completed.
  void keep(std::shared_ptr<Exchange> exchange) { kept_.push_back(std::move(exchange)); }
  /// Receives and drops the data that follows `message` from rank `from`. No call wants the data,
  /// but the sender's request must complete.
  void drain(int from, const Envelope& message);
  /// Writes this rank's last calls to a file in the directory that TESSERA_FLIGHT_DUMP names. Does
  /// so only the first time.
  void dump_flights(std::string_view cause);
  /// Tells the other ranks, and the ranks of this host, the cause of the world's failure.
  void tell_failure();
  /// Notes that a group of this world has failed. The group's other ranks may never leave.
  void note_failed_group(const std::string& cause) { failed_group_ = cause; }
  /// Returns the failure of the world or of one of its groups; "" if there was none.
  std::string any_failure() const {
    const std::string cause = failure();
    return cause.empty() ? failed_group_ : cause;
  }
  /// Fails this rank's calls under way, without telling the other ranks.
  void end_calls(std::string_view cause);
  /// Makes this rank leave the world. The other ranks are told once no call of this rank is under
  /// way and no rank may read its memory any more.
  void end();
  /// Closes every group, because of `cause`, and tells the group's ranks that this rank makes no
  /// more calls.
  void make_no_calls(const char* cause);

  /// Runs `body`. An exception fails the world, because the others wait for this rank.
  template <typename Body>
  void guard(Body&& body) {
    try {
      body();
    } catch (const Fault&) {  // the world has failed with it already
    } catch (const std::exception& error) {
      fail_by(error);
    }
  }
  /// Advances the calls that are under way. Returns true if a message has completed.
  bool advance(Clock::time_point now);
  /// Returns true while anything is under way, so that advance() must be called.
  bool is_busy() const;
  /// Returns true if this rank is leaving a group of this world.
  bool is_closing() const;
  /// Returns false if a call must not be reported as finished yet, because envelopes of this rank
  /// are still being sent and the application may call MPI once the call has finished.
  bool has_sent() const;
  /// Returns true if another rank may still request data of this rank's windows.
  bool is_asked() const;
  /// Returns true once all ranks have left and the communicator is freed.
  bool is_retired() const { return retired_; }
  /// Ends all ranks with MPI_Abort.
  void abort_all();

 private:
  static constexpr size_t kReceives = 8;
  /// An envelope that is being received or sent.
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
  // Groups that were made and for which add() has not been called yet.
  std::atomic<int> made_groups_{0};
  mutable std::mutex mutex_;
  std::string failure_;
  std::vector<Place> places_;
  std::weak_ptr<HostRanks> host_;

  Handle made_ = 0;
  Handle making_ = 0;
  bool is_making_ = false;
  std::optional<Communicator> communicator_;
  std::array<UnderWay, kReceives> incoming_;
  size_t next_ = 0;  // index in incoming_ of the next envelope to arrive
  bool is_looking_ = false;
  std::list<UnderWay> outgoing_;
  std::list<std::shared_ptr<Exchange>> kept_;
  std::map<uint64_t, Group> groups_;                 // by key
  std::map<uint64_t, std::vector<Received>> early_;  // for groups that this rank has not made yet
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
  // While this rank leaves: until when it waits for what is under way.
  Clock::time_point patient_until_;
  bool ended_ = false;
  bool retired_ = false;
};

}  // namespace tessera::internal::mpi
