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

#include "tessera/core/comm/process_group.h"
#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/zero/engine.h"
#include "tessera/zero/parallelize.h"

namespace tessera::testing {

/// Odd sizes, a parameter smaller than the world, a frozen one; three buckets of 1 KiB, or the
/// units "first" and "second" and the root's "scale" and "frozen".
struct Net : torch::nn::Module {
  Net() {
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

inline Options small_buckets(const Row& row) {
  Options options = options_of(row);
  set_buckets(options, row, 1024);
  return options;
}

inline torch::optim::AdamWOptions adamw() {
  return torch::optim::AdamWOptions(0.01).weight_decay(0.1);
}

inline torch::optim::AdamWOptions& adamw_of(OptimizerPlan& plan) {
  return plan.defaults.as<torch::optim::AdamWOptions>();
}

/// One rank's training run.
class Trainer {
 public:
  Trainer(std::shared_ptr<ProcessGroup> world_group, const Row& row)
      : world(std::move(world_group)),
        engine(parallelize(model, adamw(), small_buckets(row), world)) {}

  /// Depends on the rank and the number of the batch only.
  at::Tensor input(int batch) const {
    return torch::sin(torch::arange(4 * 11, torch::kFloat) * (1 + batch) + world->rank())
        .view({4, 11});
  }
  at::Tensor loss(int batch) const { return model->forward(input(batch)).square().mean(); }
  void backward(int batch) const { loss(batch).backward(); }
  StepResult train(int batch) const {
    backward(batch);
    return engine->step();
  }

  bool is_among(Who who) const { return testing::is_among(who, *world); }

  std::shared_ptr<ProcessGroup> world;
  std::shared_ptr<Net> model = std::make_shared<Net>();
  std::unique_ptr<Engine> engine;
};

/// Runs `body` with a trainer on every rank; returns how each ended.
inline std::vector<Outcome> train_ranks(Setting setting, const std::function<void(Trainer&)>& body,
                                        std::chrono::milliseconds timeout = kGroupTimeout) {
  const auto make_and_run = [&](std::shared_ptr<ProcessGroup> world) {
    Trainer trainer(std::move(world), setting.row);
    body(trainer);
  };
  return outcomes_of_ranks(setting.size, make_and_run, kFaultDeadline, setting.lane, timeout);
}

}  // namespace tessera::testing
