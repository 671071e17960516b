#pragma once

#include <optional>

namespace tessera {

/// How Engine::backward() counts a loss.
struct BackwardOptions {
  /// The number of samples or tokens that this loss is a mean over. A step whose backwards have
  /// weights w trains with sum(w * gradient) / sum(w), summed over ranks and backwards: the
  /// gradient of the mean over all samples of the step. That averages over micro-steps, too, so do
  /// not divide losses by the number of micro-steps. A factor that all weights have in common
  /// changes nothing; weight 0 adds exact zeros, whatever the gradients are (NaN included).
  ///
  /// `.grad` shows sum(w * gradient) / N, N being the number of ranks, before the division by the
  /// mean weight; clipping and StepResult::grad_norm are of the weighted mean. With
  /// Options::gradient_divide_factor D the gradient is N / D times the weighted mean.
  ///
  /// Range: 0, and the positive normal numbers of fp32, 1.2e-38 to 3.4e38. Unset: the gradient is
  /// added without a weight, as by loss.backward(). In one step either all backwards on all ranks
  /// have weights, or none has. If all weights are 0, step() throws or skips, as
  /// Options::on_non_finite says. A weight is an error under optimizer_in_backward,
  /// asynchronous_step and cuda_graphs.
  std::optional<double> weight = {};

  /// Keeps the graph for another backward, like torch::autograd's option.
  bool retain_graph = false;
};

}  // namespace tessera
