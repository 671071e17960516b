#pragma once

#include <cstdint>
#include <tuple>

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

namespace tessera {

/// Muon (Jordan et al., kellerjordan.github.io/posts/muon, 2024), which LibTorch does not have,
/// with the formulas and defaults of PyTorch's torch.optim.Muon, except for ns_in_bfloat16. A
/// Newton-Schulz iteration makes a matrix's momentum nearly orthogonal, and the step follows the
/// result. One state per element, momentum_buffer. Only for parameters of two dimensions: the
/// OptimizerPlan must give other parameters another algorithm, by its defaults or by a group.
///
/// With buffer B, gradient G, m the momentum and O(D) the iteration's result:
///   B <- lerp(B, G, 1 - m);  D = nesterov ? lerp(G, B, m) : B;
///   W <- W - lr weight_decay W;  W <- W - lr r O(D), r by adjust_lr.
/// O(D): X starts as D / max(|D|, eps), transposed if D has more rows than columns. ns_steps times
/// X <- a X + (b A + c A A) X with A = X X'. The last X, transposed back, is O(D).
struct MuonOptions : torch::optim::OptimizerCloneableOptions<MuonOptions> {
  /// How r is computed for a matrix of `rows` (outputs of a Linear) by `cols`.
  enum class AdjustLr : uint8_t {
    kOriginal,       ///< sqrt(max(1, rows / cols))
    kMatchRmsAdamW,  ///< 0.2 sqrt(max(rows, cols)); lr and weight_decay that suit AdamW then suit
                     ///< Muon, too (Moonlight, arXiv 2502.16982)
  };

  MuonOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(double, weight_decay) = 0.1;  ///< decoupled, as AdamW's
  TORCH_ARG(double, momentum) = 0.95;     ///< below 1
  TORCH_ARG(bool, nesterov) = true;
  using Coefficients = std::tuple<double, double, double>;
  TORCH_ARG(Coefficients, ns_coefficients) = std::make_tuple(3.4445, -4.7750, 2.0315);
  TORCH_ARG(int64_t, ns_steps) = 5;  ///< below 100
  TORCH_ARG(double, eps) = 1e-7;     ///< above 0
  TORCH_ARG(AdjustLr, adjust_lr) = AdjustLr::kOriginal;
  /// If true, the iteration runs in bfloat16, as torch.optim.Muon's always does, instead of the
  /// masters' dtype (fp32, or fp64). Faster only on processors that multiply in bfloat16.
  TORCH_ARG(bool, ns_in_bfloat16) = false;

 public:
  double get_lr() const override { return lr(); }
  void set_lr(const double rate) override { this->lr(rate); }
};

}  // namespace tessera
