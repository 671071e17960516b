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

/// Which rank brings which elements to load_state_dict, agreed on by all ranks.
class StateClaims {
 public:
  /// Collective, blocking; sends names of problems and ranges, no values.
  StateClaims(ProcessGroup& group, const StateTable& table, const StateDict& state);

  /// All that is wrong on any rank, a line each, the same text on all ranks: entries that are
  /// missing, in whole or in part, unknown, or of another shape or dtype, and malformed ones. Empty
  /// if nothing is.
  const std::string& problems() const { return problems_; }

  /// Whether any rank brings the slot: those that may be lacking need not be there.
  bool has(size_t slot) const { return claims_[slot].first_rank >= 0; }
  /// The elements of `slot` that this rank brings: disjoint, each element from exactly one rank,
  /// the lowest that has it. In the order of strides(slot). Only without problems().
  const std::vector<Range>& own(size_t slot) const { return claims_[slot].own; }
  const std::vector<int64_t>& strides(size_t slot) const { return claims_[slot].strides; }

 private:
  /// What all ranks together have of one slot.
  struct Claim {
    std::vector<int64_t> strides;  // of the first rank that has any; first_rank -1: none
    int first_rank = -1;
    bool is_refused = false;     // some rank has something unusable under this name
    std::vector<Range> covered;  // ascending, disjoint
    std::vector<Range> own;
  };

  void take(const StateTable& table, int rank, bool is_own, const std::vector<int64_t>& words);
  void describe(const StateTable& table, const std::vector<std::string>& problem_of_rank);

  std::vector<Claim> claims_;
  std::vector<std::string> conflicts_;
  std::string problems_;
};

}  // namespace tessera::internal
