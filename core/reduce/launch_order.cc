#include "tessera/core/reduce/launch_order.h"

#include <algorithm>
#include <numeric>

namespace tessera::internal {

LaunchOrder::LaunchOrder(size_t units, bool is_learned)
    : order_(units), positions_(is_learned ? units : 0) {
  std::iota(order_.begin(), order_.end(), size_t{0});
}

void LaunchOrder::begin_micro_step() {
  launched_ = 0;
  completed_ = 0;
  std::fill(positions_.begin(), positions_.end(), 0);
}

void LaunchOrder::completed(size_t unit) {
  if (!positions_.empty()) positions_[unit] = ++completed_;
}

void LaunchOrder::settle(const std::vector<uint32_t>& positions) {
  if (positions_.empty()) return;
  // Counted from behind, so that 0 is larger than what any unit has.
  const auto rank = [&](size_t unit) { return positions[unit] - 1; };
  std::stable_sort(order_.begin(), order_.end(),
                   [&](size_t a, size_t b) { return rank(a) < rank(b); });
  positions_.clear();
}

}  // namespace tessera::internal
