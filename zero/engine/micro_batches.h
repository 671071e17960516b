#pragma once

#include <cstdint>
#include <string>

#include "tessera/options.h"

namespace tessera::internal {

/// Counts the micro-batches of a run, over all ranks, and says what speaks against a step whose
/// bits shall not depend on how many ranks there are (Reproducible::kAnyWorldSize). Used by one
/// thread.
class MicroBatches {
 public:
  /// Of rank `rank` of `size`, on the thread that runs backward. `count`, those so far, must
  /// outlive it.
  MicroBatches(Reproducible reproducible, int rank, int size, int64_t& count);

  /// A backward begins, on its thread. Local.
  void begin();
  /// A backward of every rank has ended.
  void end() { count_ += size_; }

  /// A step is over, or its gradients are dropped.
  void clear() { other_threads_ = threads_; }

  /// That of this rank's next backward: ended ones of all ranks, and the rank.
  int64_t next() const { return count_ + rank_; }

  int64_t count() const { return count_; }
  void set_count(int64_t count) { count_ = count; }

  /// Whether the sum over a step's micro-steps is complete after `backwards` of them.
  bool is_sum_complete(int64_t backwards) const;
  /// What keeps a step of `backwards` micro-steps from having the bits of other numbers of ranks;
  /// "" for nothing.
  std::string problem(int64_t backwards) const;

 private:
  const bool is_any_size_;
  const int rank_;
  const int size_;
  const int threads_;  // for operators
  int other_threads_;  // in a backward of this step; threads_ if in all
  int64_t& count_;
};

}  // namespace tessera::internal
