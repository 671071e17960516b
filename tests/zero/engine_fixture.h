#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"
#include "tessera/zero/parallelize.h"

namespace tessera::testing {
inline Options options_of(Strategy strategy) {
  return {.strategy = strategy, .bucket_bytes = 1024, .first_bucket_bytes = 1024};
}

inline torch::optim::AdamWOptions adamw() { return torch::optim::AdamWOptions(0.02).eps(1e-6); }

inline std::shared_ptr<Net> make_net(uint64_t seed = 3) {
  return prepare(subject("OddMlp").make(), at::kDouble, seed);
}

inline at::Tensor loss_on(Net& net, int rank, int step) {
  const Schedule schedule{.name = ""};
  const Moment moment{.step = step, .rank = rank};
  return loss_of(net, batch_of(subject("OddMlp"), at::kDouble, schedule, moment, 0), moment,
                 schedule);
}

/// Runs an engine under each strategy, alone and on three ranks.
class EngineTest : public ::testing::TestWithParam<std::tuple<Strategy, int>> {
 protected:
  Strategy strategy() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
  bool has_whole_gradients() const { return strategy() == Strategy::kDdp || size() == 1; }

  /// One rank with a model of two odd layers.
  struct Rank {
    Rank(std::shared_ptr<ProcessGroup> group, Strategy strategy, double max_grad_norm = INFINITY)
        : world(std::move(group)), net(make_net()) {
      Options options = options_of(strategy);
      options.max_grad_norm = max_grad_norm;
      engine = parallelize(net, adamw(), options, world);
    }
    at::Tensor loss(int step) const { return loss_on(*net, world->rank(), step); }
    StepResult train(int step) const {
      loss(step).backward();
      return engine->step();
    }

    std::shared_ptr<ProcessGroup> world;
    std::shared_ptr<Net> net;
    std::unique_ptr<Engine> engine;
  };

  void on_ranks(const std::function<void(Rank&)>& body) const {
    run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
      Rank rank(std::move(world), strategy());
      body(rank);
    });
  }
};

inline std::string name_of(const ::testing::TestParamInfo<std::tuple<Strategy, int>>& info) {
  return std::string(to_string(std::get<0>(info.param))) + "_World" +
         std::to_string(std::get<1>(info.param));
}

/// What every suite here runs over.
inline auto strategies_and_worlds() {
  return ::testing::Combine(::testing::Values(Strategy::kDdp, Strategy::kZero1, Strategy::kZero2),
                            ::testing::Values(1, 3));
}

}  // namespace tessera::testing
