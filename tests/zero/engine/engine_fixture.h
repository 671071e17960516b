#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/sync_batch_norm.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/engine_rank.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/setting.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {

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

/// A SyncBatchNorm of four channels.
struct NormNet : torch::nn::Module {
  explicit NormNet(const std::shared_ptr<ProcessGroup>& group) {
    norm = register_module("norm", tessera::nn::SyncBatchNorm1d(4, group));
  }
  tessera::nn::SyncBatchNorm1d norm{nullptr};
};

/// A rank with a model of two layers of odd sizes.
struct OddRank : EngineRank<Net> {
  OddRank(std::shared_ptr<ProcessGroup> group, const Options& options)
      : EngineRank(std::move(group), make_net(), adamw(), options) {}
  at::Tensor loss(int step) const override { return loss_on(*net, world->rank(), step); }
};

/// Runs an engine under each configuration, alone and on three ranks (hybrids on two or four).
class EngineTest : public ::testing::TestWithParam<std::pair<Configuration, int>> {
 protected:
  const Configuration& configuration() const { return GetParam().first; }
  int size() const { return GetParam().second; }
  bool has_whole_gradients() const {
    return Setting{configuration(), size()}.has_whole_gradients();
  }
  bool splits_parameters() const { return Setting{configuration(), size()}.splits_parameters(); }

  struct Rank : OddRank {
    Rank(std::shared_ptr<ProcessGroup> group, const Configuration& configuration,
         double max_grad_norm = INFINITY)
        : OddRank(std::move(group), clipped(small_options_of(configuration), max_grad_norm)) {}
    static Options clipped(Options options, double max_grad_norm) {
      options.max_grad_norm = max_grad_norm;
      return options;
    }
  };

  void on_ranks(const std::function<void(Rank&)>& body) const {
    run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
      Rank rank(std::move(world), configuration());
      body(rank);
    });
  }
};

inline std::string name_of(const ::testing::TestParamInfo<std::pair<Configuration, int>>& info) {
  return info.param.first.name + "_World" + std::to_string(info.param.second);
}

/// The configurations and worlds of every suite here, or those that suit a test.
inline auto configurations_and_worlds(Suits suits = nullptr) {
  std::vector<std::pair<Configuration, int>> all;
  for (const Configuration& configuration : named_configurations()) {
    for (const int world : {1, 3}) all.emplace_back(configuration, world);
  }
  all.emplace_back(hostile(configuration_of(Strategy::kZero3)), 1);
  all.emplace_back(hostile(configuration_of(Strategy::kZero3)), 3);
  all.emplace_back(resharding(1), 3);
  all.emplace_back(hybrid(2, 2, 2), 2);
  all.emplace_back(hybrid(2, 2, 2), 4);
  all.emplace_back(hybrid(1, 2, 4), 4);
  std::erase_if(all, [suits](const std::pair<Configuration, int>& each) {
    const Setting setting{each.first, each.second};
    return suits != nullptr && !(setting.*suits)();
  });
  return ::testing::ValuesIn(all);
}

}  // namespace tessera::internal::testing
