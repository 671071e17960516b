#pragma once

#include <cstdint>
#include <vector>

namespace tessera::internal {

/// Returns the first number of the generator SplitMix64 (Steele, Lea, Flood 2014) with the initial
/// state `start`.
uint64_t split_mix(uint64_t start);

/// Returns a permutation of 0 ... size - 1. For the same arguments it must never change, on any
/// machine, because checkpoints hold positions in it. The algorithm is Fisher and Yates' shuffle,
/// from the last position down. Its random numbers come from SplitMix64 with the initial state
/// split_mix(split_mix(seed) + epoch). To draw a number below b, it takes numbers from the
/// generator until one is below the greatest multiple of b that is at most 2^64; that number modulo
/// b is the draw.
std::vector<int64_t> shuffled(int64_t size, int64_t seed, int64_t epoch);

}  // namespace tessera::internal
