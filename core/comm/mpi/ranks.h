#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/mpi/envelope.h"
#include "tessera/core/comm/mpi/world.h"

namespace tessera::internal::mpi {

/// The ranks of one group: their numbers in the world, what each has reported, and why the group
/// has failed. Any thread may call all functions except those for the progress thread.
class Ranks {
 public:
  /// `world_ranks`: the world rank of each rank of the group, in ascending order. `key`: the
  /// group_key() of the group. `rank`: this rank in the group.
  Ranks(std::shared_ptr<World> world, uint64_t key, std::vector<int> world_ranks, int rank)
      : world_(std::move(world)),
        key_(key),
        world_ranks_(std::move(world_ranks)),
        rank_(rank),
        told_(world_ranks_.size()) {}

  World& world() const { return *world_; }
  const std::shared_ptr<World>& world_ptr() const { return world_; }
  uint64_t key() const { return key_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  int world_rank(int rank) const { return world_ranks_[static_cast<size_t>(rank)]; }
  /// Returns which rank of this group is rank `world_rank` of the world; -1 if that rank is not in
  /// the group.
  int rank_of(int world_rank) const {
    const auto found = std::lower_bound(world_ranks_.begin(), world_ranks_.end(), world_rank);
    const bool is_in = found != world_ranks_.end() && *found == world_rank;
    return is_in ? static_cast<int>(found - world_ranks_.begin()) : -1;
  }

  // Facts that a rank has told the others.

  struct Told {
    std::atomic<int64_t> called{0};  ///< how many calls it has begun
    /// How many calls it had finished when it left; -1 until it leaves.
    std::atomic<int64_t> left_after{-1};
  };
  Told& told(int rank) { return told_[static_cast<size_t>(rank)]; }
  const Told& told(int rank) const { return told_[static_cast<size_t>(rank)]; }

  // If the group itself has not failed, the two functions below report the failure of its world.

  bool has_failed() const { return has_failed_ || world_->has_failed(); }
  Failure failure() const {
    Failure failure = failure_of_group();
    if (failure.cause.empty()) {
      failure.cause = world_->failure();
      const int author = world_->author_of_failure();
      if (author >= 0) failure.author = rank_of(author) < 0 ? Failure::kOutsider : rank_of(author);
    }
    if (ends_at_once_) failure = {.cause = failure.cause};
    return failure;
  }
  /// Returns the failure of the group alone, not of its world. If the group has not failed, the
  /// cause is "".
  Failure failure_of_group() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
  }
  /// Sets the failure of the group, with its cause shortened to the length that is sent to other
  /// ranks. Does nothing and returns false if the group has failed already.
  bool set_failure(const Failure& failure) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.cause.empty()) return false;
    failure_ = failure;
    if (failure_.cause.size() > Envelope::kCauseBytes) failure_.cause.resize(Envelope::kCauseBytes);
    has_failed_ = true;
    return true;
  }
  /// From now on, a failure fails all calls, even those that could still have ended well.
  void end_at_once() { ends_at_once_ = true; }

  // For the progress thread.

  Envelope envelope(Envelope::Kind kind) const {
    Envelope made;
    made.kind = kind;
    made.group = key_;
    return made;
  }
  void send(const Envelope& envelope, int rank) const { world_->send(envelope, world_rank(rank)); }
  /// Sends `envelope` to all other ranks of the group. Each rank begins with the rank after its
  /// own, so that ranks do not all send to rank 0 at once.
  void send_to_others(const Envelope& envelope) const {
    for (int peer = 1; peer < size(); ++peer) send(envelope, (rank_ + peer) % size());
  }
  /// Tells the others that the group has failed.
  void tell_failure(const Failure& failure) const {
    Envelope failed = envelope(Envelope::Kind::kFailed);
    failed.number = failure.calls;
    failed.set_cause(failure.cause);
    send_to_others(failed);
  }

 private:
  const std::shared_ptr<World> world_;
  const uint64_t key_;
  const std::vector<int> world_ranks_;
  const int rank_;
  std::vector<Told> told_;
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> ends_at_once_{false};
  mutable std::mutex mutex_;
  Failure failure_;
};

}  // namespace tessera::internal::mpi
