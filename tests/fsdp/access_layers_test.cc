#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "tessera/core/access/access_key.h"
#include "tessera/parallelize.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/layer_cases.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

// The harshest policy for every kind of layer: a unit is whole only while an operator uses it, and
// its freed memory holds NaN. A missed access throws, crashes or changes bits.

namespace tessera::internal::testing {
namespace {

constexpr int kSteps = 3;

/// One rank's result of a run with one layer.
struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> state;  ///< parameters and buffers
};

std::map<std::string, at::Tensor> copy_state(const torch::nn::Module& model) {
  std::map<std::string, at::Tensor> state = copy_parameters(model);
  for (const auto& buffer : model.named_buffers()) {
    state["buffer " + buffer.key()] = buffer.value().clone();
  }
  return state;
}

torch::optim::AdamWOptions adamw() { return torch::optim::AdamWOptions(0.02).eps(1e-6); }

/// Rank 0's first loss without an engine.
double plain_loss(const LayerCase& layer) {
  torch::nn::Module model;
  const LayerCase::Loss loss_with = layer.build(model);
  draw_parameters(model, 11);
  Inputs inputs(0, 0);
  return loss_with(inputs).item<double>();
}

Trained train_with_engine(const LayerCase& layer, const Configuration& configuration,
                          const std::shared_ptr<ProcessGroup>& world) {
  const auto model = std::make_shared<torch::nn::Module>();
  const LayerCase::Loss loss_with = layer.build(*model);
  draw_parameters(*model, 11);
  const auto engine = parallelize(model, adamw(), options_of(configuration), world);
  Trained run;
  for (int step = 0; step < kSteps; ++step) {
    Inputs inputs(world->rank(), step);
    const at::Tensor loss = loss_with(inputs);
    run.losses.push_back(loss.item<double>());
    loss.backward();
    engine->step();
  }
  run.state = copy_state(*model);
  if (configuration.free_eagerly) {
    const GatherCounts counts = engine->gather_counts();
    EXPECT_GE(counts.gathers, kSteps) << "nothing was freed";
    EXPECT_EQ(counts.gathers, counts.frees);
  }
  return run;
}

std::vector<Trained> train_on_ranks(const LayerCase& layer, const Configuration& configuration,
                                    int size) {
  std::vector<Trained> by_rank(static_cast<size_t>(size));
  run_ranks(size, [&](const std::shared_ptr<ProcessGroup>& world) {
    by_rank[static_cast<size_t>(world->rank())] = train_with_engine(layer, configuration, world);
  });
  return by_rank;
}

using LayerInWorld = std::tuple<LayerCase, int /*world*/>;

class HostilePolicy : public ::testing::TestWithParam<LayerInWorld> {};

TEST_P(HostilePolicy, GivesTheBitsOfTheUnshardedCopy) {
  const auto& [layer, size] = GetParam();
  const std::vector<Trained> expected =
      train_on_ranks(layer, configuration_of(Strategy::kDdp), size);
  const std::vector<Trained> got =
      train_on_ranks(layer, hostile(apart(configuration_of(Strategy::kZero3))), size);
  for (size_t rank = 0; rank < got.size(); ++rank) {
    EXPECT_EQ(bit_differences(got[rank].losses, expected[rank].losses), "") << "rank " << rank;
    EXPECT_EQ(bit_differences(got[rank].state, expected[rank].state), "") << "rank " << rank;
  }
  if (size == 1) {
    EXPECT_EQ(got[0].losses[0], plain_loss(layer));
  }
}

/// Freed as usual, with each layer a unit.
TEST_P(HostilePolicy, IsNoHarsherThanTheUsualOne) {
  const auto& [layer, size] = GetParam();
  Configuration configuration = configuration_of(Strategy::kZero3);
  configuration.poison_freed = true;
  const std::vector<Trained> expected =
      train_on_ranks(layer, configuration_of(Strategy::kDdp), size);
  const std::vector<Trained> got = train_on_ranks(layer, configuration, size);
  for (size_t rank = 0; rank < got.size(); ++rank) {
    EXPECT_EQ(bit_differences(got[rank].losses, expected[rank].losses), "") << "rank " << rank;
    EXPECT_EQ(bit_differences(got[rank].state, expected[rank].state), "") << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(, HostilePolicy,
                         ::testing::Combine(::testing::ValuesIn(layer_cases()),
                                            ::testing::Values(1, 3)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_World" +
                                  std::to_string(std::get<1>(info.param));
                         });

/// Negative control: an operator that is not observed throws under this policy and names the unit.
TEST(HostilePolicyControl, AMissedOperatorDoesNotPass) {
  run_ranks(1, [](const std::shared_ptr<ProcessGroup>& world) {
    torch::nn::Linear model(5, 7);
    Configuration configuration = hostile(configuration_of(Strategy::kZero3));
    const auto engine = parallelize(model, adamw(), options_of(configuration), world);
    EXPECT_TRUE(model(at::ones({2, 5})).isfinite().all().item<bool>());
    const c10::impl::ExcludeDispatchKeyGuard unseen(kAccessKey);
    EXPECT_THROW(model(at::ones({2, 5})), c10::Error);
  });
}

}  // namespace
}  // namespace tessera::internal::testing
