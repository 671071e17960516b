#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// An average of the weights over a run's steps (Options::average). It has the masters' dtype, and
/// is split and saved like the optimizer's states. Each averaged step updates it right after the
/// weights, while their new values are in the cache. It covers all trainable parameters, whether a
/// step has used them or not; frozen parameters are their own average. Engine::begin_average()
/// makes the model the average.
///
/// The averaged steps are start_step, start_step + every, ... Only committed steps count
/// (StepResult::step); skipped ones do not. The first averaged values become the average.
struct WeightAverage {
  /// Set: an exponential moving average, decay * average + (1 - decay) * values, as PyTorch's
  /// get_ema_avg_fn(). Range [0, 1). Unset: the mean of all averaged values, average += (values -
  /// average) / n, as PyTorch's get_swa_avg_fn() (SWA, arXiv 1803.05407).
  std::optional<double> decay = {};
  int64_t start_step = 1;  ///< number of the first averaged step; at least 1
  int64_t every = 1;       ///< steps from one averaged step to the next; at least 1

  friend bool operator==(const WeightAverage&, const WeightAverage&) = default;
};

/// Returns the problems of `average`, one line each: "average.<field>: got X; allowed Y; do Z".
std::vector<std::string> problems_of(const WeightAverage& average);

}  // namespace tessera
