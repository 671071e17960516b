#pragma once

#include <cstdint>
#include <vector>

#include <torch/torch.h>

namespace gpt {

/// A learning rate that rises linearly over the first `warmup_steps` and then falls to `floor`
/// along half a cosine.
struct RateCurve {
  double peak = 1e-3;
  double floor = 1e-4;
  int64_t warmup_steps = 20;
  int64_t steps = 400;  ///< of the whole training

  /// The rate of step number `step`, counted from 0; `floor` from the last step on.
  double at(int64_t step) const;
};

/// Sets the rate of all parameter groups: at once that of step 0, and by each step() that of the
/// next. Call step() after each engine->step(), on every rank.
class Schedule final : public torch::optim::LRScheduler {
 public:
  /// `optimizer` must outlive the schedule.
  Schedule(torch::optim::Optimizer& optimizer, const RateCurve& curve);

 private:
  std::vector<double> get_lrs() override;

  RateCurve curve_;
};

}  // namespace gpt
