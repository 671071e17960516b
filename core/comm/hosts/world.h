#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/flight_recorder/flight.h"
#include "tessera/core/comm/hosts/outer_group.h"
#include "tessera/core/process/fork.h"
#include "tessera/process_group.h"

namespace tessera::internal::hosts {

class Member;

/// What all groups of one rank share whose ranks are on several hosts: how they fail together. The
/// groups that they are made of fail apart; here whatever fails one of them fails all, on all
/// ranks, because the others may wait in another one. Thread-safe.
class World {
 public:
  /// Collective over both groups: of all ranks, and of this host's. Calls are recorded in
  /// `flights`, if there are any.
  World(ProcessGroup& flat, ProcessGroup& inside, std::shared_ptr<FlightRing> flights);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// The process of the rank.
  const Origin& origin() const { return origin_; }
  int rank() const { return of_all_->rank(); }
  int size() const { return of_all_->size(); }
  const std::shared_ptr<FlightRing>& flights() const { return flights_; }
  /// Why calls fail; "" if they do not, as far as this rank knows.
  std::string failure() const;
  /// Makes `cause` that reason, on all ranks, unless there is one, or the ranks of this host have
  /// failed: then theirs. Returns it. No effect in a child of fork().
  std::string fail(std::string_view cause) noexcept;
  /// The same because an exception unwinds a group.
  void fail_by_unwinding() noexcept;
  /// The same because this rank leaves in the middle of a collective.
  void fail_by_leaving() noexcept;

  /// Takes a member whose group is gone: its collectives, which the others may be waiting in, go on
  /// until they are over, and only then has this rank left the groups that it was made of.
  void retire(std::unique_ptr<Member> member);

 private:
  const Origin origin_;
  const std::shared_ptr<ProcessGroup> of_all_;
  const std::shared_ptr<ProcessGroup> of_host_;
  const WeakHostRanks host_ranks_;
  const std::shared_ptr<FlightRing> flights_;
  mutable std::mutex mutex_;
  std::string failure_;
  std::vector<std::unique_ptr<Member>> retired_;
};

}  // namespace tessera::internal::hosts
