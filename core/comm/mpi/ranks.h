#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/mpi/envelope.h"
#include "tessera/core/comm/mpi/world.h"

namespace tessera::internal::mpi {

/// The ranks of one group: who they are in the world, what each has told, and why they have failed.
/// Any thread, but for send().
class Ranks {
 public:
  /// `world_ranks` in ascending order; `key`: of the group in envelopes.
  Ranks(std::shared_ptr<World> world, uint64_t key, std::vector<int> world_ranks, int rank);

  World& world() const { return *world_; }
  const std::shared_ptr<World>& world_ptr() const { return world_; }
  uint64_t key() const { return key_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  int world_rank(int rank) const { return world_ranks_[static_cast<size_t>(rank)]; }
  /// -1 of a rank that is not in the group.
  int rank_of(int world_rank) const;

  // What a rank has told.

  /// It has begun so many calls.
  void note_called(int rank, int64_t calls) { known(rank).called = calls; }
  int64_t called_by(int rank) const { return known(rank).called; }
  /// It has left after so many calls, all of which it had finished.
  void note_left(int rank, int64_t calls) { known(rank).left_after = calls; }
  bool has_left(int rank) const { return known(rank).left_after >= 0; }
  int64_t left_after(int rank) const { return known(rank).left_after; }

  // Failure: of the group, else of the world.

  bool has_failed() const { return has_failed_ || world_->has_failed(); }
  Failure failure() const;
  /// Of the group alone, and not of its world; without a cause if there is none.
  Failure failure_of_group() const;
  /// Of the group; whether there was none before.
  bool set_failure(const Failure& failure);
  /// After a failure no call ends well any more.
  void end_at_once() { ends_at_once_ = true; }

  // The progress thread's.

  Envelope envelope(Envelope::Kind kind) const;
  void send(const Envelope& envelope, int rank) const { world_->send(envelope, world_rank(rank)); }
  /// Tells the others that the group has failed.
  void tell_failure(const Failure& failure) const;
  /// To this rank's neighbour first, so that ranks do not all send to rank 0 at once.
  void send_to_others(const Envelope& envelope) const;

 private:
  struct Known {
    std::atomic<int64_t> called{0};
    std::atomic<int64_t> left_after{-1};
  };
  Known& known(int rank) { return known_[static_cast<size_t>(rank)]; }
  const Known& known(int rank) const { return known_[static_cast<size_t>(rank)]; }

  const std::shared_ptr<World> world_;
  const uint64_t key_;
  const std::vector<int> world_ranks_;
  const int rank_;
  std::vector<Known> known_;
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> ends_at_once_{false};
  mutable std::mutex mutex_;
  Failure failure_;
};

}  // namespace tessera::internal::mpi
