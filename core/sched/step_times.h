#pragma once

#include <cstdint>

#include "tessera/trace.h"

namespace tessera::internal {

/// Where the time of some steps goes, on the thread that trains: of the first ten and of every
/// hundredth, so that the others cost a branch at each of these calls. Note [Communication and
/// overlap] in step_times.cc. Used by one thread.
class StepTimes {
 public:
  using Clock = int64_t (*)();  ///< nanoseconds

  /// Nothing is ever sampled unless `measures`.
  explicit StepTimes(bool measures, Clock now = &Trace::now_ns) : measures_(measures), now_(now) {}

  /// Whether the step that `steps` others came before is sampled.
  static constexpr bool samples(int64_t steps) { return steps < 10 || (steps + 1) % 100 == 0; }
  /// Whether the present one is.
  bool is_sampling() const { return is_sampling_; }

  /// A step's forward begins. What was measured of a step that has not ended is dropped.
  void begin_step();
  /// The first gradient of a backward is there.
  void begin_backward();
  /// Autograd has no more gradients; some may not be reduced yet.
  void end_gradients();
  /// They are; another forward may begin.
  void end_backward();
  /// step() is called.
  void begin_update();
  /// It has been made.
  void end_step();

  /// A communication, as begin_communication() returned it.
  struct Begun {
    int64_t ns;
    int64_t sample;
  };
  /// To be called only if is_sampling().
  Begun begin_communication();
  /// This thread has spent the time since `since_ns` in `begun`, which is_done or goes on.
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
    int64_t bytes = 0;  ///< communicated
  };
  /// Of the sampled steps so far.
  const Sums& sums() const { return sums_; }

 private:
  /// The time since the last call.
  int64_t lap();

  const bool measures_;
  const Clock now_;
  bool is_sampling_ = false;
  int64_t steps_ = 0;   // that have ended
  int64_t sample_ = 0;  // changes with each step that begins
  int64_t lap_begin_ = 0;
  int64_t in_flight_ = 0;   // communications
  int64_t busy_begin_ = 0;  // when the first of them began
  int64_t waited_ = 0;
  Sums present_;  // step
  Sums sums_;
};

}  // namespace tessera::internal
