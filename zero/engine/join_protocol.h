#pragma once

#include <cstdint>
#include <vector>

#include "tessera/core/step/host_all_gather.h"
#include "tessera/process_group.h"

namespace tessera::internal {

/// Before each collective call in a loop over Engine::join(), ranks all-gather one word each.
/// Afterwards every rank knows which call comes next and which ranks have batches left.
class JoinProtocol {
 public:
  enum class Call : int64_t {
    kFollow,          ///< this rank has no batches left and repeats the other ranks' calls
    kMicroStep,       ///< a backward that reduces
    kLocalMicroStep,  ///< a backward inside no_sync()
    kAccumulate,      ///< Engine::accumulate() outside no_sync()
    kStep,
    kZeroGrad,
    kOther,  ///< a call that a rank without batches cannot follow
  };

  /// `group` must outlive it.
  explicit JoinProtocol(ProcessGroup& group) : group_(group), calls_(group, /*words=*/1) {}

  /// One rank's announcement. `name` is for messages. `is_weighted`: the rank's loss has a weight.
  struct Announcement {
    Call call;
    const char* name;
    bool is_weighted = false;
    bool has_left = false;  ///< the rank has left the loop
  };

  /// Returns the call of the ranks that have batches; kFollow if no rank has any. Collective,
  /// blocking. Throws c10::Error on every rank, naming the ranks, if some have left the loop, if
  /// calls differ, if a rank would have to follow kOther, or, under `throws_when_one_ends`, if only
  /// some ranks have batches left.
  Call exchange(const Announcement& mine, bool throws_when_one_ends);

  /// Results of the last exchange(): true if all ranks had left the loop; true if the losses of the
  /// ranks with batches have weights; the number of ranks with batches.
  bool all_left() const { return all_left_; }
  bool is_weighted() const { return is_weighted_; }
  int active() const { return static_cast<int>(active_.size()); }
  /// Returns the lowest rank that has batches left. If no rank has any, returns the lowest rank
  /// that had some at the last exchange() at which any rank had some.
  int lowest_active() const { return lowest_active_; }
  bool is_active(int rank) const;

  int64_t bytes() const { return calls_.bytes(); }

 private:
  ProcessGroup& group_;
  HostAllGather calls_;
  std::vector<int> active_;
  int lowest_active_ = 0;
  bool all_left_ = false;
  bool is_weighted_ = false;
};

}  // namespace tessera::internal
