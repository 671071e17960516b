#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/step/host_all_gather.h"
#include "tessera/process_group.h"

namespace tessera::internal {

/// The exchange between ranks at the end of a backward: what each rank has reduced so far, how many
/// rounds each unit has (Note [Rounds]), which parameters each rank has used, and whether a rank
/// objects.
class BackwardAgreement {
 public:
  /// `group` must outlive it.
  BackwardAgreement(ProcessGroup& group, size_t units, size_t parameters);

  /// `history` is a RollingHash of everything that this rank reduced and dropped. Raises `rounds`
  /// (per unit) to the largest of any rank, sets used[i] if local[i] is set on any rank, and
  /// replaces `positions` (ReductionOrder::positions() of this rank: one per unit, or empty on all
  /// ranks) by the positions of rank 0. Returns what is wrong, the same on every rank, or "".
  /// Collective, blocking.
  std::string exchange(int64_t history, const std::vector<uint8_t>& local,
                       std::vector<size_t>& rounds, std::vector<uint8_t>& used,
                       std::vector<uint32_t>& positions);

  /// A rank's report on its backwards since the last exchange; does not contain gradients.
  struct Report {
    bool objects = false;       ///< this rank has found an error
    bool has_plain = false;     ///< a backward had no weight
    bool has_weighted = false;  ///< a backward had a weight
    double weight = 0.0;        ///< the sum of the weights
  };
  /// Sets this rank's report, before exchange().
  void report(const Report& report) { report_ = report; }
  /// Return, after exchange(), the report of `rank`, and whether any rank objects. Equal on all
  /// ranks.
  Report report_of(int rank) const;
  bool is_objected() const { return is_objected_; }

  int64_t bytes() const { return all_gather_.bytes(); }

 private:
  const int size_;
  HostAllGather all_gather_;
  Report report_;
  bool is_objected_ = false;
};

}  // namespace tessera::internal
