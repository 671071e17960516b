#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/core/comm/shm/sync.h"
#include "tessera/core/comm/shm/world.h"
#include "tessera/core/sched/lane.h"
#include "tessera/errors.h"

namespace tessera::internal::shm {

/// This rank's side of one channel: posts calls, waits for the others, and reports every failure as
/// CommError with one cause. See Note [Collective order] and Note [Poison]. Collectives are called
/// by one thread at a time.
class Member {
 public:
  struct Options {
    std::chrono::milliseconds timeout;
    /// A wait as long as this is reported once. 0: none is.
    std::chrono::milliseconds report_after = std::chrono::seconds(30);
    /// How often a wait looks before it sleeps; 0 where ranks outnumber cores.
    int spin_count = 0;
  };

  /// `memory` holds the channel and is kept alive.
  Member(std::shared_ptr<World> world, std::shared_ptr<Segment> memory, Channel& channel, int rank,
         std::string group_name, Options options);
  /// Marks this rank as having left and wakes whoever waits for it; not in a child of fork().
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  int rank() const { return rank_; }
  int size() const { return channel_.size; }
  World& world() { return *world_; }
  const std::shared_ptr<World>& world_ptr() const { return world_; }
  const std::string& group_name() const { return group_name_; }
  const Options& options() const { return options_; }
  /// What holds the channel.
  const std::shared_ptr<Segment>& memory() const { return memory_; }
  Channel& channel() { return channel_; }
  /// The group's own; the world has another.
  const Poison& poison() const { return channel_.poison; }
  int world_rank(int rank) { return channel_.slot(rank).world_rank; }

  /// Throws CommError in a child of fork(), which is no rank, before anything waits or is touched.
  void require_own_process(std::string_view tag) const;

  /// Called by the thread that asks for a collective, before it runs in whatever thread.
  void note_caller() {
    channel_.slot(rank_).caller.store(current_thread_id(), std::memory_order_relaxed);
  }

  /// A descriptor with the next sequence number. Throws CommError if the group or the world
  /// has failed.
  CallDescriptor next_call(const CallSignature& signature, std::string_view tag);

  /// Posts the call, waits for the calls of all ranks and compares them. `lane` says which thread
  /// is blocked meanwhile.
  void post(const CallDescriptor& call, const Lane& lane);

  /// Ends a phase: waits until all ranks have ended theirs.
  void arrive_and_wait(const Lane& lane);

  /// After post(): fails on every rank unless the slices that the ranks ask for are a permutation.
  void check_slices();

  /// Counts the call as finished.
  void finish();

  /// The posted call of a rank, and the address here of the memory it names. After post(), until
  /// finish().
  const CallDescriptor& call_of(int rank) { return channel_.slot(rank).calls[sequence_ & 1]; }
  char* source_of(int rank);

  /// "rank 1", and its number in the world where that is another one.
  std::string name_of(int rank) const;

  /// Poisons the group and throws CommError with its first cause. `culprit`: the rank of the world
  /// that began it, for the launcher; negative: this one, as far as it knows.
  [[noreturn]] void fail(const std::string& cause, int culprit = -1);

  /// Poisons the world; not from a child of fork(). Never throws.
  void abort(std::string_view cause) noexcept;

  /// A blocked call throws CommError soon: this rank is leaving.
  void stop();

 private:
  void wait_slowly(uint32_t target, const Lane& lane);
  void report_wait(std::chrono::steady_clock::duration waited);
  [[noreturn]] void time_out(const std::string& suspicion);
  void throw_if_failed();
  void check_leavers();
  CommError error(const std::string& cause) const;
  [[noreturn]] void throw_error(const std::string& cause);
  void report(int culprit, const std::string& cause) const;
  int first_missing() const;
  /// The missing rank to name as the cause, numbered in the world: preferably one that is stopped.
  int find_culprit() const;
  std::string missing_names() const;

  const std::shared_ptr<World> world_;
  const std::shared_ptr<Segment> memory_;
  Channel& channel_;
  const int rank_;
  const std::string group_name_;
  const Options options_;
  std::atomic<bool> stopping_{false};
  int64_t sequence_ = -1;
  CallDescriptor call_;  // the last one, for errors: after a failure the slot belongs to slow peers
  uint32_t phase_ = 0;
  uint64_t flight_ = 0;  // number of the last call in the flight recorder
  // Of peers' segments, without the world's lock; the world keeps them.
  std::unordered_map<SegmentId, char*, SegmentId::Hash> bases_;
};

}  // namespace tessera::internal::shm
