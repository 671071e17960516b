#include "tessera/core/sched/access_order.h"

#include <algorithm>

namespace tessera::internal {

namespace {

// Evaluation may go on for ever without a step, so uses beyond this number share one place.
constexpr int64_t kMaxUses = 64;

/// Returns true if a use in phase `now`, right after a use in phase `before`, is expected again
/// next time. Backward always begins where forward ends, but an evaluation may or may not come
/// between.
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
