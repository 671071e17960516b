#pragma once

#include <optional>

namespace tessera {

/// How Engine::backward() counts a loss.
struct BackwardOptions {
  /// The number of samples or tokens that this loss is a mean over. A step whose backwards have
  /// weights w trains with sum(w * gradient) / sum(w), summed over ranks and backwards: the
  /// gradient of the mean over all of their samples. That averages over micro-steps, too, so do not
  /// divide losses by their number. A factor that all weights have in common changes nothing;
  /// weight 0 adds exact zeros, whatever the gradients are (NaN included).
  ///
  /// `.grad` shows sum(w * gradient) / N, not divided by the mean weight yet; clipping and
  /// StepResult::grad_norm are of the weighted mean. With Options::gradient_divide_factor D the
  /// gradient is N / D times the weighted mean.
  ///
  /// Range: 0, and the positive normal numbers of fp32, 1.2e-38 to 3.4e38. Unset: the loss as it
  /// is, as loss.backward() adds it. All backwards of a step have weights, on all ranks, or none
  /// has. Where all are 0, step() throws or skips, as Options::on_non_finite says. An error under
  /// optimizer_in_backward, asynchronous_step and cuda_graphs.
  std::optional<double> weight = {};

  /// Keeps the graph for another backward, like torch::autograd's option.
  bool retain_graph = false;
};

}  // namespace tessera
