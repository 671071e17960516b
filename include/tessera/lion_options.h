#pragma once

#include <tuple>

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

namespace tessera {

/// Lion (Chen et al., arXiv 2302.06675, algorithm 2), which LibTorch does not have: a step is the
/// sign of an average of momentum and gradient. Keeps one state per element, exp_avg. Use a
/// learning rate 3 to 10 times smaller than for AdamW, and a weight decay 3 to 10 times larger.
struct LionOptions : torch::optim::OptimizerCloneableOptions<LionOptions> {
  LionOptions(double lr = 1e-4) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-4;
  using Betas = std::tuple<double, double>;
  /// beta1: the weight of the momentum in the step. beta2: the weight of the old momentum in the
  /// new one.
  TORCH_ARG(Betas, betas) = std::make_tuple(0.9, 0.99);
  TORCH_ARG(double, weight_decay) = 0;  ///< decoupled, as AdamW's

 public:
  double get_lr() const override { return lr(); }
  void set_lr(const double rate) override { this->lr(rate); }
};

}  // namespace tessera
