#include "tessera/core/sched/step_times.h"

namespace tessera::internal {

// Note [Communication and overlap]
// Communication is the time during which at least one reduction is under way, from its call until
// this thread sees that it is complete. The part that this thread spends in the calls and in
// waiting is exposed; the rest, during which it computes, is the overlap. PyTorch's DDPLoggingData
// counts all of backward after the first reduction as overlap; here a reduction that runs inside
// its call overlaps with nothing.

int64_t StepTimes::lap() {
  const int64_t now = now_();
  const int64_t time = now - lap_begin_;
  lap_begin_ = now;
  return time;
}

void StepTimes::begin_step() {
  is_sampling_ = measures_ && samples(steps_);
  if (!is_sampling_) return;
  ++sample_;
  in_flight_ = 0;
  waited_ = 0;
  present_ = {};
  lap_begin_ = now_();
}

void StepTimes::begin_backward() {
  if (is_sampling_) present_.forward += lap();
}

void StepTimes::end_gradients() {
  if (is_sampling_) present_.backward += lap();
}

void StepTimes::end_backward() {
  if (is_sampling_) lap();
}

void StepTimes::begin_update() {
  if (is_sampling_) lap();
}

void StepTimes::end_step() {
  ++steps_;
  if (!is_sampling_) return;
  sums_.steps += 1;
  sums_.forward += present_.forward;
  sums_.backward += present_.backward;
  sums_.communication += present_.communication;
  sums_.overlap += present_.communication - waited_;
  sums_.update += lap();
  sums_.bytes += present_.bytes;
  is_sampling_ = false;
}

StepTimes::Begun StepTimes::begin_communication() {
  const int64_t now = now_();
  if (in_flight_++ == 0) busy_begin_ = now;
  return {.ns = now, .sample = sample_};
}

void StepTimes::add_wait(const Begun& begun, int64_t since_ns, bool is_done) {
  if (!is_sampling_ || begun.sample != sample_) return;
  const int64_t now = now_();
  waited_ += now - since_ns;
  if (is_done && --in_flight_ == 0) present_.communication += now - busy_begin_;
}

}  // namespace tessera::internal
