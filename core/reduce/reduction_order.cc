#include "tessera/core/reduce/reduction_order.h"

#include <algorithm>
#include <numeric>

namespace tessera::internal {

ReductionOrder::ReductionOrder(size_t units, bool is_learned)
    : order_(units), positions_(is_learned ? units : 0) {
  std::iota(order_.begin(), order_.end(), size_t{0});
}

void ReductionOrder::begin_micro_step() {
  launched_ = 0;
  completed_ = 0;
  std::fill(positions_.begin(), positions_.end(), 0);
}

void ReductionOrder::completed(size_t unit) {
  if (!positions_.empty()) positions_[unit] = ++completed_;
}

void ReductionOrder::settle(const std::vector<uint32_t>& positions) {
  const auto is_completed = [&](size_t unit) { return positions[unit] != 0; };
  if (positions_.empty() || std::none_of(order_.begin(), order_.end(), is_completed)) return;
  std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
    if (!is_completed(a) || !is_completed(b)) return is_completed(a);
    return positions[a] < positions[b];
  });
  positions_.clear();
}

}  // namespace tessera::internal
