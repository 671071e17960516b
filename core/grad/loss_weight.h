#pragma once

namespace tessera::internal {

/// While it lives, backwards on this thread are of a loss that counts by `weight`
/// (BackwardOptions::weight). The engine multiplies gradients when they are complete; a layer that
/// adds up gradients of several ranks' losses has to know how they count.
class LossWeight {
 public:
  explicit LossWeight(double weight);
  ~LossWeight();
  LossWeight(const LossWeight&) = delete;
  LossWeight& operator=(const LossWeight&) = delete;

  /// That of the backward that runs on this thread; 1 without any.
  static double of_backward();

 private:
  const double outer_;
};

}  // namespace tessera::internal
