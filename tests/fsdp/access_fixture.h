#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {

/// Two units, "first" and "second", and a root with "scale".
struct TwoLayers : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return second(at::tanh(first(input))) * scale; }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(5, 7));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(7, 3));
  at::Tensor scale = register_parameter("scale", torch::ones({3}));
};

/// A rank with a split model, and a copy of the model that no engine has.
struct SplitRank {
  SplitRank(std::shared_ptr<ProcessGroup> group, const Configuration& configuration)
      : world(std::move(group)), options(options_of(configuration)) {
    draw_parameters(*plain, 5);
    draw_parameters(*model, 5);
    engine = parallelize(model, torch::optim::AdamWOptions(0.02).eps(1e-6), options, world);
  }

  at::Tensor input(int step) const {
    return at::sin(at::arange(20, at::kFloat) * (1 + step) + world->rank()).view({4, 5});
  }
  StepResult train(int step) const {
    model->forward(input(step)).square().mean().backward();
    return engine->step();
  }
  /// Uses the other units, so that only use keeps this one whole.
  void free_first() const {
    const at::NoGradGuard no_grad;
    (model->second->weight.sum() + model->second->bias.sum()).item<float>();
  }

  std::shared_ptr<ProcessGroup> world;
  Options options;
  std::shared_ptr<TwoLayers> model = std::make_shared<TwoLayers>();
  std::shared_ptr<TwoLayers> plain = std::make_shared<TwoLayers>();
  std::unique_ptr<Engine> engine;
};

/// Runs `body` on rank threads with a model split as `configuration` says.
inline void on_split_ranks(int size, const Configuration& configuration,
                           const std::function<void(SplitRank&)>& body) {
  run_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
    SplitRank rank(std::move(world), configuration);
    body(rank);
  });
}

/// The settings for access tests: one rank under the hostile policy, and three ranks.
inline std::vector<std::pair<int, Configuration>> split_settings() {
  return {{1, hostile(configuration_of(Strategy::kZero3))},
          {3, apart(configuration_of(Strategy::kZero3))},
          {3, hostile(configuration_of(Strategy::kZero3))},
          {3, hostile(apart(configuration_of(Strategy::kZero3)))}};
}

/// Matches a refusal that names the unit that cannot be read.
inline auto names_unit(const std::string& unit) {
  return ::testing::ThrowsMessage<c10::Error>(
      ::testing::AllOf(::testing::HasSubstr("[fsdp] unit '" + unit + "'"),
                       ::testing::HasSubstr("engine->gather(module)")));
}

}  // namespace tessera::internal::testing
