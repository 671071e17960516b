#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/flight_recorder/flight_recorder.h"
#include "tessera/core/comm/group/host_ranks.h"
#include "tessera/core/comm/shm/arena.h"
#include "tessera/core/comm/shm/progress.h"
#include "tessera/core/comm/shm/sync.h"
#include "tessera/core/process/file_descriptor.h"
#include "tessera/core/process/fork.h"

namespace tessera::internal::shm {

/// One rank's part of the control page.
struct alignas(64) RankState {
  int32_t pid;
  std::atomic<uint32_t> left;  // 1 once the rank's last group is gone
  Bell bell;
};

/// The shared page of a world: its ranks, and the cause of a failure. `size` RankStates, the
/// world's own Channel and `size` FlightRings follow.
struct alignas(64) ControlPage {
  std::atomic<uint32_t> dump_claimed;  // 1 once a rank writes the flight dump
  int32_t size;
  Poison poison;

  RankState& rank(int rank) { return reinterpret_cast<RankState*>(this + 1)[rank]; }
  Channel& channel() { return *reinterpret_cast<Channel*>(&rank(size)); }
  FlightRing& ring(int rank) {
    auto* const first = reinterpret_cast<char*>(&channel()) + Channel::bytes(size);
    return reinterpret_cast<FlightRing*>(first)[rank];
  }
  static int64_t bytes(int size) {
    return static_cast<int64_t>(sizeof(ControlPage) +
                                size * (sizeof(RankState) + sizeof(FlightRing))) +
           Channel::bytes(size);
  }
};

/// How error texts name the ranks of a world that is part of a job.
struct PartOfJob {
  std::vector<int> numbers = {};  ///< the ranks' numbers in the job; empty: as in this world
  std::string host = {};          ///< the host of the ranks; "": the job has one host
};

/// State that all groups of one rank share: the control page, the arena, the peers. The rank leaves
/// the world when this object is destroyed with the last group. Thread-safe.
class World final : public HostRanks {
 public:
  /// Local. create(): one rank makes the control page for ranks in the processes `pids`. open():
  /// the other ranks open that page. `page`: its location, which the first rank's page() returns.
  static std::shared_ptr<World> create(const std::vector<int>& pids, int own_rank = 0,
                                       const PartOfJob& part = {});
  static std::shared_ptr<World> open(int rank, int size, const SharedRange& page,
                                     const PartOfJob& part = {});
  ~World() override;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Returns the number by which error texts name a rank.
  int number_of(int rank) const {
    return part_.numbers.empty() ? rank : part_.numbers[static_cast<size_t>(rank)];
  }
  /// This rank's process.
  const Origin& origin() const { return origin_; }
  const std::shared_ptr<Arena>& arena() const { return arena_; }
  const std::shared_ptr<Segment>& segment() const { return segment_; }
  Channel& channel() { return page_->channel(); }
  Poison& poison() { return page_->poison; }
  /// Returns the bell that wakes the threads of a rank.
  Bell& bell_of(int rank) { return page_->rank(rank).bell; }
  /// Wakes the waiting threads of a group's ranks.
  void ring_bells(Channel& channel) {
    for (int rank = 0; rank < channel.size; ++rank) bell_of(channel.slot(rank).world_rank).ring();
  }
  /// Returns the groups of this rank, which advance while it waits for anything.
  Progress& progress() { return progress_; }
  SharedRange page() const { return segment_->range(0); }

  /// Local. Returns how many cores the ranks may use together. This is more than this rank's cores
  /// if each rank is bound to its own cores, and less than the ranks' cores if a container limits
  /// the CPU time.
  int cores() const;

  std::shared_ptr<FlightRing> flights() override { return {segment_, &page_->ring(rank_)}; }
  /// Local. Returns the last calls of a rank, as many as are kept, even if its process has ended.
  RankFlight flight_of(int rank) const;
  void dump_flights(std::string_view cause) noexcept override;

  /// Local. Returns the pid of a rank's process.
  int pid_of(int rank) const { return page_->rank(rank).pid; }
  std::vector<int> pids() const;
  /// Returns a text that says where the rank runs, such as " (pid 7)", or " (pid 7 on nodeB)" if
  /// the job has several hosts.
  std::string place_of(int rank) const;

  /// Local. Returns the state of another rank's process ("is stopped"); "" if it is unknown, or if
  /// the rank is in this process.
  std::string activity_of(int rank) const;

  std::string failure() override;
  std::string lost_rank() override;
  void fail(std::string_view cause, bool is_author) noexcept override;
  void leave() override { progress_.leave(); }
  /// Sets the world's poison, unless it is set already, and wakes the waiting ranks. Returns true
  /// if it was not set before. `author`: the rank that fails the world, or Poison::kNobody.
  bool fail_by(int64_t author, std::string_view cause) noexcept;

  /// Local, does not block. If the process of a rank has ended without leaving, sets the world's
  /// poison, tells the launcher `describe(cause)` and returns true.
  bool check_peers(const std::function<std::string(const std::string& cause)>& describe =
                       [](const std::string& cause) { return cause; });
  /// Local. Blocks until the process `pid` of a rank has ended, for some seconds at most. A process
  /// closes its files before it has ended. So a rank that cannot open a peer's segment waits here
  /// before it checks whether the peer has died.
  void await_end_of(int pid) const;

 private:
  void check_access() const;
  World(int rank, int size, std::shared_ptr<Segment> segment, const PartOfJob& part);

  const Origin origin_;
  const int rank_;
  const int size_;
  const PartOfJob part_;
  const std::shared_ptr<Segment> segment_;
  ControlPage* const page_;
  const std::shared_ptr<Arena> arena_ = Arena::create();
  // Descriptors of the ranks' processes, by rank. Not open for ranks of this process, or where the
  // kernel refuses pidfd_open().
  std::vector<FileDescriptor> pidfds_;
  Progress progress_;
};

}  // namespace tessera::internal::shm
