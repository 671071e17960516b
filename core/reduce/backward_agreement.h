#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/step/host_all_gather.h"
#include "tessera/process_group.h"

namespace tessera::internal {

/// The exchange of ranks at the end of a backward: what each has reduced so far, how many rounds
/// each unit has (Note [Rounds]), which parameters each has used and whether one objects.
class BackwardAgreement {
 public:
  /// `group` must outlive it.
  BackwardAgreement(ProcessGroup& group, size_t units, size_t parameters);

  /// Collective, blocking. `history`: a RollingHash of what this rank reduced and dropped. Raises
  /// `rounds` (per unit) to the most of any rank and sets used[i] where local[i] is set on any.
  /// Returns what is wrong, the same on every rank, or "".
  std::string exchange(int64_t history, const std::vector<uint8_t>& local,
                       std::vector<size_t>& rounds, std::vector<uint8_t>& used);

  /// Before exchange(): whether this rank has found an error in this backward.
  void object(bool objects) { objects_ = objects; }
  /// After it: whether any rank has. Equal on all ranks.
  bool is_objected() const { return is_objected_; }

  int64_t bytes() const { return all_gather_.bytes(); }

 private:
  const int size_;
  HostAllGather all_gather_;
  bool objects_ = false;
  bool is_objected_ = false;
};

}  // namespace tessera::internal
