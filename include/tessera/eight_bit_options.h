#pragma once

#include <tuple>

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

namespace tessera {

/// AdamW (torch::optim::AdamWOptions, without amsgrad) whose moments are kept in 8 bits: a code per
/// element and an fp32 scale per block of 64 (Dettmers et al., "8-bit Optimizers via Block-wise
/// Quantization", arXiv 2110.02861). The two moments then take 2.125 bytes per element instead of
/// 8. An update converts the codes to the masters' dtype, applies AdamW's formulas and converts the
/// moments back. States: exp_avg_codes, exp_avg_scales, exp_avg_sq_codes, exp_avg_sq_scales.
/// quantize_state() (eight_bit_state.h) converts AdamW's states.
struct AdamW8bitOptions : torch::optim::OptimizerCloneableOptions<AdamW8bitOptions> {
  AdamW8bitOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-3;
  using Betas = std::tuple<double, double>;
  TORCH_ARG(Betas, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 1e-2;

 public:
  double get_lr() const override { return lr(); }
  void set_lr(const double rate) override { this->lr(rate); }
};

/// Lion (LionOptions) whose momentum is kept in 8 bits in the same way: 1.0625 bytes per element
/// instead of 4. States: exp_avg_codes, exp_avg_scales.
struct Lion8bitOptions : torch::optim::OptimizerCloneableOptions<Lion8bitOptions> {
  Lion8bitOptions(double lr = 1e-4) : lr_(lr) {}
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
