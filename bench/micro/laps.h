#pragma once

#include <cstdint>

#include <benchmark/benchmark.h>

namespace tessera::internal::bench {

/// The timed repetitions, equal in number on all ranks: rank 0 counts them through Google
/// Benchmark, which also takes the time; the others count by themselves.
///
///   while (laps.next()) group.barrier();
class Laps {
 public:
  explicit Laps(benchmark::State& state) : state_(&state), left_(0) {}
  explicit Laps(int64_t count) : state_(nullptr), left_(count) {}

  bool next() { return state_ != nullptr ? state_->KeepRunning() : left_-- > 0; }

 private:
  benchmark::State* state_;
  int64_t left_;
};

}  // namespace tessera::internal::bench
