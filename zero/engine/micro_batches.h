#pragma once

#include <cstdint>
#include <string>

#include "tessera/options.h"

namespace tessera::internal {

/// Counts the micro-batches of a run over all ranks. Under Reproducible::kAnyWorldSize it also says
/// why a step's bits would depend on the number of ranks. Used by one thread.
class MicroBatches {
 public:
  /// For rank `rank` of `size` ranks. Construct it on the thread that runs backward. `count`, the
  /// number of micro-batches so far, must outlive this object.
  MicroBatches(Reproducible reproducible, int rank, int size, int64_t& count);

  /// Called when a backward begins, on its thread. Local.
  void begin();
  /// Called when this rank's backward has no more gradients. Counts a micro-batch of every rank,
  /// because all ranks make equally many backwards.
  void end() { count_ += size_; }

  /// Called when a step is over or its gradients are dropped.
  void clear() { other_threads_ = threads_; }

  /// Returns the number of this rank's next micro-batch: the number of micro-batches counted so
  /// far, plus the rank.
  int64_t next() const { return count_ + rank_; }

  int64_t count() const { return count_; }
  void set_count(int64_t count) { count_ = count; }

  /// Returns true if the sum over a step's micro-steps is complete after `backwards` micro-steps.
  bool is_sum_complete(int64_t backwards) const;
  /// Returns why a step of `backwards` micro-steps would have other bits on other numbers of ranks;
  /// "" if it would not.
  std::string problem(int64_t backwards) const;

 private:
  const bool is_any_size_;
  const int rank_;
  const int size_;
  const int threads_;  // intra-op threads at parallelize
  // If a backward of this step ran with another number of intra-op threads, that number; else
  // threads_.
  int other_threads_;
  int64_t& count_;
};

}  // namespace tessera::internal
