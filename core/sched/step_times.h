#pragma once

#include <cstdint>

#include "tessera/trace.h"

namespace tessera::internal {

/// Measures how the training thread spends the time of a step. Samples the first ten steps and
/// every hundredth. In the other steps each call costs only a branch. Note [Communication and
/// overlap] in step_times.cc. Used by one thread.
class StepTimes {
 public:
  using Clock = int64_t (*)();  ///< nanoseconds

  /// Samples nothing if `measures` is false.
  explicit StepTimes(bool measures, Clock now = &Trace::now_ns) : measures_(measures), now_(now) {}

  /// Returns true if step number `steps` is sampled. The first step is number 0.
  static constexpr bool samples(int64_t steps) { return steps < 10 || (steps + 1) % 100 == 0; }
  /// Returns true if the present step is sampled.
  bool is_sampling() const { return is_sampling_; }

  /// Called when a step's forward begins. Drops the measurements of a step that has not ended.
  void begin_step();
  /// Called when the first gradient of a backward has arrived.
  void begin_backward();
  /// Called when autograd has no more gradients; some may not be reduced yet.
  void end_gradients();
  /// Called when all gradients are reduced. If another backward follows before step(), the time
  /// until then counts as forward.
  void end_backward();
  /// Called when step() begins.
  void begin_update();
  /// Called when the step has been made.
  void end_step();

  /// Identifies a communication: when it began, and in which sampled step.
  struct Begun {
    int64_t ns;
    int64_t sample;
  };
  /// Notes that a communication begins now. Call it only if is_sampling().
  Begun begin_communication();
  /// Notes that this thread has spent the time from `since_ns` until now on the communication
  /// `begun`: calling it, polling it or waiting for it. `is_done`: the communication is complete.
  void add_wait(const Begun& begun, int64_t since_ns, bool is_done);
  void add_bytes(int64_t bytes) { present_.bytes += bytes; }
  int64_t now() const { return now_(); }

  /// Sums over steps, in nanoseconds.
  struct Sums {
    int64_t steps = 0;
    int64_t forward = 0;
    int64_t backward = 0;
    int64_t communication = 0;
    int64_t overlap = 0;
    int64_t update = 0;
    int64_t bytes = 0;  ///< bytes communicated
  };
  /// Sums over the sampled steps so far.
  const Sums& sums() const { return sums_; }

 private:
  /// Returns the time since the last call of lap().
  int64_t lap();

  const bool measures_;
  const Clock now_;
  bool is_sampling_ = false;
  int64_t steps_ = 0;   // steps that have ended
  int64_t sample_ = 0;  // number of the sampled step
  int64_t lap_begin_ = 0;
  int64_t in_flight_ = 0;   // number of communications under way
  int64_t busy_begin_ = 0;  // when in_flight_ last rose from 0
  int64_t waited_ = 0;
  Sums present_;  // sums of the present step
  Sums sums_;
};

}  // namespace tessera::internal
