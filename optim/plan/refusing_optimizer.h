#pragma once

#include <memory>

#include <torch/optim/optimizer.h>

namespace tessera::internal {

/// The part of an engine's optimizer that users see: parameter groups that schedulers and users
/// read and edit. Calls that only the engine may make throw.
class RefusingOptimizer : public torch::optim::Optimizer {
 public:
  /// Makes an optimizer without groups.
  explicit RefusingOptimizer(std::unique_ptr<torch::optim::OptimizerOptions> defaults);

  /// Throws c10::Error: "[optim] step: call engine->step()".
  torch::Tensor step(LossClosure closure = nullptr) override;

  /// Throw c10::Error, because a rank has only its share of the state, and LibTorch's defaults
  /// would write and read nothing. Engine::state_dict() has all of it by name.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace tessera::internal
