#include "tessera/data/shuffle.h"

#include <numeric>
#include <utility>

namespace tessera::internal {
namespace {

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t start) : state_(start) {}

  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  /// Returns a number below `bound`, each with the same probability.
  uint64_t below(uint64_t bound) {
    for (;;) {
      const uint64_t number = next();
      const uint64_t rest = number % bound;
      // Accepts `number` only if the whole run of `bound` numbers that begins with number - rest
      // fits into 64 bits, so that every rest is equally likely.
      if (number - rest <= uint64_t{0} - bound) return rest;
    }
  }

 private:
  uint64_t state_;
};

}  // namespace

uint64_t split_mix(uint64_t start) { return SplitMix64(start).next(); }

std::vector<int64_t> shuffled(int64_t size, int64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  SplitMix64 random(
      split_mix(split_mix(static_cast<uint64_t>(seed)) + static_cast<uint64_t>(epoch)));
  for (size_t left = order.size(); left > 1; --left) {
    std::swap(order[left - 1], order[random.below(left)]);
  }
  return order;
}

}  // namespace tessera::internal
