#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/row.h"
#include "tessera/tests/support/training.h"
#include "tessera/zero/parallelize.h"

namespace tessera::testing {
/// As `row` says, with small buckets.
inline Options small_options_of(const Row& row) {
  Options options = options_of(row);
  set_buckets(options, row, 1024);
  return options;
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

/// Runs an engine under each row, alone and on three ranks (hybrids on two or four).
class EngineTest : public ::testing::TestWithParam<std::pair<Row, int>> {
 protected:
  const Row& row() const { return GetParam().first; }
  int size() const { return GetParam().second; }
  bool has_whole_gradients() const { return row().degrees_at(size()).optimizer == 1; }
  bool splits_parameters() const {
    return row().splits_parameters() && (size() > 1 || row().free_eagerly);
  }

  /// One rank with a model of two odd layers.
  struct Rank {
    Rank(std::shared_ptr<ProcessGroup> group, const Row& row, double max_grad_norm = INFINITY)
        : world(std::move(group)), net(make_net()) {
      Options options = small_options_of(row);
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
      Rank rank(std::move(world), row());
      body(rank);
    });
  }
};

inline std::string name_of(const ::testing::TestParamInfo<std::pair<Row, int>>& info) {
  return info.param.first.name + "_World" + std::to_string(info.param.second);
}

/// What every suite here runs over.
inline auto rows_and_worlds() {
  std::vector<std::pair<Row, int>> all;
  for (const Row& row : named_rows()) {
    for (const int world : {1, 3}) all.emplace_back(row, world);
  }
  all.emplace_back(hostile(row_of(Strategy::kZero3)), 1);
  all.emplace_back(hostile(row_of(Strategy::kZero3)), 3);
  all.emplace_back(resharding(1), 3);
  all.emplace_back(hybrid(2, 2, 2), 2);
  all.emplace_back(hybrid(2, 2, 2), 4);
  all.emplace_back(hybrid(1, 2, 4), 4);
  return ::testing::ValuesIn(all);
}

}  // namespace tessera::testing
