#include "tessera/core/sched/access_order.h"

#include <algorithm>

namespace tessera::internal {

namespace {

// Each of the first kMaxUses uses of a unit in a phase has a successor of its own; all later uses
// share one. Without this limit next_ would grow without end in an evaluation that goes on for
// ever, because the counts of uses start again only in begin(), which an evaluation does not call.
constexpr int64_t kMaxUses = 64;

/// Returns true if a use in phase `now`, right after a use in phase `before`, is recorded as the
/// successor of that use. A use in backward right after one in forward is recorded, because
/// backward always begins where forward ends. A change from training to an evaluation or back is
/// not recorded, because it does not come in every step.
bool follows(AccessOrder::Phase before, AccessOrder::Phase now) {
  return before == now ||
         (before == AccessOrder::Phase::kForward && now == AccessOrder::Phase::kBackward);
}

}  // namespace

std::optional<size_t> AccessOrder::visit(Phase phase, size_t unit) {
  int64_t& uses = uses_[{phase, unit}];
  const Place place{phase, unit, std::min(uses++, kMaxUses)};
  if (last_.has_value() && follows(std::get<Phase>(*last_), phase)) next_[*last_] = unit;
  last_ = place;
  const auto expected = next_.find(place);
  if (expected == next_.end()) return std::nullopt;
  return expected->second;
}

void AccessOrder::begin() {
  uses_.clear();
  last_.reset();
}

}  // namespace tessera::internal
