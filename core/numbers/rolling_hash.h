#pragma once

#include <cstdint>

namespace tessera::internal {

/// A hash of a rank's sequence of events. Ranks with the same sequence have the same hash.
class RollingHash {
 public:
  /// Events that all ranks must have in the same order. The numbers are part of the exchanged
  /// value.
  enum class Event : uint8_t { kReduce = 1, kMicroStep, kNoSyncMicroStep, kDrop, kStep, kGather };

  /// Adds an event to the sequence. Local, a few nanoseconds.
  void record(Event event, int64_t subject) {
    // The finalizer of splitmix64: every input bit reaches every output bit.
    uint64_t x = value_ ^ (static_cast<uint64_t>(event) << 56) ^ static_cast<uint64_t>(subject);
    x += 0x9E3779B97F4A7C15ULL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    value_ = x ^ (x >> 31);
  }

  int64_t value() const { return static_cast<int64_t>(value_); }

 private:
  uint64_t value_ = 0;
};

}  // namespace tessera::internal
