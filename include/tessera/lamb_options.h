#pragma once

#include <tuple>

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

namespace tessera {

/// LAMB (You et al., arXiv 1904.00962, algorithm 2, with phi the identity), which LibTorch does not
/// have: Adam's step with decoupled weight decay, scaled for each parameter by the norm of the
/// parameter's values divided by the norm of its step. For large batches. Has Adam's states,
/// exp_avg and exp_avg_sq, and takes parameters of any number of dimensions.
///
/// With Adam's bias-corrected moments m and v:  U = m / (sqrt(v) + eps) + weight_decay W;
///   W <- W - lr r U, r = |W| / |U|, 1 where either norm is 0.
/// Norms are sums over the whole parameter without rounding, so that bits do not depend on slices.
struct LambOptions : torch::optim::OptimizerCloneableOptions<LambOptions> {
  LambOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-3;
  using Betas = std::tuple<double, double>;
  TORCH_ARG(Betas, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0.01;

 public:
  double get_lr() const override { return lr(); }
  void set_lr(const double rate) override { this->lr(rate); }
};

}  // namespace tessera
