#pragma once

namespace tessera::internal {

/// While it lives, `weight` is the loss weight of every backward on this thread
/// (BackwardOptions::weight). The engine multiplies gradients with the weight when they are
/// complete, but a layer that adds up gradients of several ranks' losses needs the weight earlier.
class LossWeightScope {
 public:
  explicit LossWeightScope(double weight);
  ~LossWeightScope();
  LossWeightScope(const LossWeightScope&) = delete;
  LossWeightScope& operator=(const LossWeightScope&) = delete;

  /// Returns the loss weight of the backward that runs on this thread; 1 if it has none.
  static double of_backward();

 private:
  const double outer_;
};

}  // namespace tessera::internal
