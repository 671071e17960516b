#include "tessera/core/reduce/tree_accumulator.h"

#include <algorithm>
#include <bit>

namespace tessera::internal {

size_t TreeAccumulator::used() const { return static_cast<size_t>(std::popcount(terms_)) - 1; }

void TreeAccumulator::add(const at::Tensor& most, const at::Tensor& term,
                          const Allocate& allocate) {
  size_t used = this->used();
  const int carries = std::countr_one(terms_++);
  if (carries == 0) {
    if (partial_.size() == used) partial_.push_back(allocate());
    partial_[used].copy_(term);
    return;
  }
  const auto sum = [&](size_t place) { return place == 0 ? most : partial_[place - 1]; };
  sum(used).add_(term);
  for (int carry = 1; carry < carries; ++carry, --used) sum(used - 1).add_(sum(used));
}

int64_t partial_sums_of(int64_t terms) {
  return std::max<int64_t>(std::bit_width(static_cast<uint64_t>(terms - 1)), 1);
}

}  // namespace tessera::internal
