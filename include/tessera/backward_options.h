#pragma once

#include <optional>

namespace tessera {

/// Options of Engine::backward().
struct BackwardOptions {
  /// The number of samples or tokens that this loss is a mean over. If the backwards of a step have
  /// weights w, the step uses sum(w * gradient) / sum(w), with sums over ranks and backwards: the
  /// gradient of the mean over all samples of the step. That averages over micro-steps, too, so do
  /// not divide losses by the number of micro-steps. Multiplying all weights by one factor changes
  /// nothing. A loss with weight 0 adds exact zeros, even if its gradients are NaN.
  ///
  /// On N ranks `.grad` shows sum(w * gradient) / N, because step() divides by the mean weight
  /// later. Clipping and StepResult::grad_norm use the weighted mean. With
  /// Options::gradient_divide_factor D the step uses N / D times the weighted mean.
  ///
  /// Range: 0, and the positive normal numbers of fp32, 1.2e-38 to 3.4e38. Unset: the gradient is
  /// added without a weight, as by loss.backward(). In one step either all backwards on all ranks
  /// have weights, or none has. If all weights are 0, step() throws or is skipped, as
  /// Options::on_non_finite says. A weight is an error under optimizer_in_backward,
  /// asynchronous_step, cuda_graphs and Reproducible::kAnyWorldSize.
  std::optional<double> weight = {};

  /// Keeps the graph for another backward, like torch::autograd's option.
  bool retain_graph = false;
};

}  // namespace tessera
