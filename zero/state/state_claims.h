#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/flat_layout.h"
#include "tessera/process_group.h"
#include "tessera/state_dict.h"
#include "tessera/zero/state/state_table.h"

namespace tessera::internal {

/// Which rank brings which elements to load_state_dict. All ranks agree on it.
class StateClaims {
 public:
  /// Collective, blocking. Ranks send each other the texts of problems and the ranges that they
  /// have, but no values.
  StateClaims(ProcessGroup& group, const StateTable& table, const StateDict& state);

  /// Returns the problems of all ranks, a line each, the same text on all ranks: entries that are
  /// missing (in whole or in part), unknown, malformed, or of another shape or dtype. "" if none.
  const std::string& problems() const { return problems_; }

  /// Returns true if any rank brings `slot`. Only a slot with StateSlot::may_lack may be missing.
  bool has(size_t slot) const { return claims_[slot].first_rank >= 0; }
  /// Returns the elements of `slot` that this rank brings, in the order of strides(slot). Each
  /// element comes from exactly one rank, the lowest that has it. Call it only if problems() is
  /// empty.
  const std::vector<Range>& own(size_t slot) const { return claims_[slot].own; }
  const std::vector<int64_t>& strides(size_t slot) const { return claims_[slot].strides; }

 private:
  /// The elements of one slot that all ranks together have.
  struct Claim {
    std::vector<int64_t> strides;  // of the entry on first_rank
    int first_rank = -1;           // the lowest rank that has a usable entry
    bool is_refused = false;       // some rank's entry is unusable, or ranks differ in strides
    std::vector<Range> covered;    // what any rank has; ascending, disjoint
    std::vector<Range> own;        // what this rank brings
  };

  void take(const StateTable& table, int rank, bool is_own, const std::vector<int64_t>& words);
  void describe(const StateTable& table, const std::vector<std::string>& problem_of_rank);

  std::vector<Claim> claims_;
  std::vector<std::string> conflicts_;
  std::string problems_;
};

}  // namespace tessera::internal
