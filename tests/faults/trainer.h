#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "tessera/process_group.h"
#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/tests/support/engine_rank.h"

namespace tessera::internal::testing {

/// Odd sizes, a parameter smaller than the world, a frozen one; three buckets of 1 KiB, or the
/// units "first" and "second" and the root with "scale" and "frozen".
struct FaultNet : torch::nn::Module {
  FaultNet() {
    first = register_module("first", torch::nn::Linear(11, 37));
    second = register_module("second", torch::nn::Linear(37, 13));
    scale = register_parameter("scale", torch::ones({}));
    frozen = register_parameter("frozen", torch::ones({13}), /*requires_grad=*/false);
  }
  at::Tensor forward(const at::Tensor& input) {
    return scale * second->forward(torch::tanh(first->forward(input))) + frozen;
  }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  at::Tensor scale;
  at::Tensor frozen;
};

inline torch::optim::AdamWOptions adamw() {
  return torch::optim::AdamWOptions(0.01).weight_decay(0.1);
}

inline torch::optim::AdamWOptions& adamw_of(OptimizerPlan& plan) {
  return plan.defaults.as<torch::optim::AdamWOptions>();
}

/// One rank's training run.
class Trainer : public EngineRank<FaultNet> {
 public:
  Trainer(std::shared_ptr<ProcessGroup> group, const Configuration& configuration)
      : Trainer(std::move(group), small_options_of(configuration)) {}
  Trainer(std::shared_ptr<ProcessGroup> group, const Options& options)
      : EngineRank(std::move(group), std::make_shared<FaultNet>(), adamw(), options) {}

  /// Depends only on the rank and the number of the batch.
  at::Tensor input(int batch) const {
    return torch::sin(torch::arange(4 * 11, torch::kFloat) * (1 + batch) + world->rank())
        .view({4, 11});
  }
  at::Tensor loss(int batch) const override { return net->forward(input(batch)).square().mean(); }

  bool is_among(Who who) const { return testing::is_among(who, *world); }
};

/// Runs `body` with a trainer on every rank; returns how each ended.
inline std::vector<Ending> train_ranks(Setting setting, const std::function<void(Trainer&)>& body,
                                       std::chrono::milliseconds timeout = kGroupTimeout) {
  const auto make_and_run = [&](std::shared_ptr<ProcessGroup> world) {
    Trainer trainer(std::move(world), setting.configuration);
    body(trainer);
  };
  return outcomes_of_ranks(setting.size, make_and_run, setting.lane, timeout);
}

}  // namespace tessera::internal::testing
