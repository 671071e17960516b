#pragma once

namespace tessera::internal {

/// While it lives, backwards on this thread are of a loss with `weight` (BackwardOptions::weight).
/// The engine multiplies gradients when they are complete, but a layer that adds up gradients of
/// several ranks' losses needs the weight earlier.
class LossWeightScope {
 public:
  explicit LossWeightScope(double weight);
  ~LossWeightScope();
  LossWeightScope(const LossWeightScope&) = delete;
  LossWeightScope& operator=(const LossWeightScope&) = delete;

  /// Returns the weight of the backward that runs on this thread; 1 if it has none.
  static double of_backward();

 private:
  const double outer_;
};

}  // namespace tessera::internal
