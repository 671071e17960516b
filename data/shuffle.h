#pragma once

#include <cstdint>
#include <vector>

namespace tessera::internal {

/// Returns the first number of SplitMix64 (Steele, Lea, Flood 2014) that starts at `start`.
uint64_t split_mix(uint64_t start);

/// Returns a permutation of 0 ... size - 1. It must never change, on any machine, because
/// checkpoints hold places in it. Fisher and Yates' shuffle, from the last place down, over the
/// numbers of SplitMix64 that starts at split_mix(split_mix(seed) + epoch). A draw below b takes
/// numbers until one is below the greatest multiple of b that is at most 2^64, and returns its
/// remainder by b.
std::vector<int64_t> shuffled(int64_t size, int64_t seed, int64_t epoch);

}  // namespace tessera::internal
