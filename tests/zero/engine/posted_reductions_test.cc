// Backward does not wait for peers if reductions are posted. A rank stalls in its first hook until
// its peers have run all of theirs: if a peer waited for it, neither would continue, and the
// groups' time-out would end the test.
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/engine.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/wrap_rules.h"

namespace tessera::internal {
namespace {

using testing::run_ranks;

struct StalledCase {
  const char* name;
  Strategy strategy;
  int world;
  /// A peer releases the stalled rank at the first or second gradient of this layer; layer 0 is the
  /// last in backward.
  int layer = 0;
  int gradient = 2;
  std::optional<int> units_in_reduction = {};
};

class StalledBackward : public ::testing::TestWithParam<StalledCase> {};
INSTANTIATE_TEST_SUITE_P(
    All, StalledBackward,
    ::testing::Values(StalledCase{"ddp_2", Strategy::kDdp, 2},
                      StalledCase{"ddp_3", Strategy::kDdp, 3},
                      StalledCase{"zero1_2", Strategy::kZero1, 2},
                      StalledCase{"zero1_4", Strategy::kZero1, 4},
                      // Pooled buffers: a peer reaches the first gradient of the unit that finds no
                      // free buffer.
                      StalledCase{"zero2_3", Strategy::kZero2, 3, 4, 1},
                      StalledCase{"zero2_3_four", Strategy::kZero2, 3, 1, 1, 4},
                      StalledCase{"zero2_3_all", Strategy::kZero2, 3, 0, 2, 6},
                      StalledCase{"zero3_2_two", Strategy::kZero3, 2, 3, 1, 2},
                      StalledCase{"zero3_3_all", Strategy::kZero3, 3, 0, 2, 6}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(StalledBackward, LetsPeersRunAllTheirHooks) {
  const StalledCase& given = GetParam();
  constexpr int kSteps = 3;
  std::vector<std::unique_ptr<std::latch>> peers_are_through;
  for (int step = 0; step < kSteps; ++step) {
    peers_are_through.push_back(std::make_unique<std::latch>(given.world - 1));
  }
  run_ranks(given.world, [&](const std::shared_ptr<ProcessGroup>& world) {
    torch::manual_seed(1);
    torch::nn::Sequential model;
    for (int i = 0; i < 6; ++i) model->push_back(torch::nn::Linear(16, 16));
    Options options{.strategy = given.strategy, .units_in_reduction = given.units_in_reduction};
    if (given.strategy == Strategy::kZero3) {
      options.wrap = wrap_by_type<torch::nn::Linear>();
    } else {
      options.bucket_bytes = {1024};
    }
    int step = 0;
    const std::vector<at::Tensor> parameters = model->parameters();
    const auto engine = parallelize(model, torch::optim::SGDOptions(0.1), options, world);
    const auto stalls = [&] { return world->rank() == step % given.world; };
    parameters.back().register_hook([&](const at::Tensor&) {
      if (stalls()) peers_are_through[step]->wait();
    });
    int gradients = 0;
    for (const size_t i : {2 * given.layer, 2 * given.layer + 1}) {
      parameters[i].register_hook([&](const at::Tensor&) {
        if (++gradients == given.gradient && !stalls()) peers_are_through[step]->count_down();
      });
    }
    for (; step < kSteps; ++step) {
      gradients = 0;
      model->forward(at::full({4, 16}, world->rank() + 1.0)).pow(2).mean().backward();
      engine->step();
    }
    EXPECT_EQ(engine->memory().peak()[MemoryClass::kGradientBuffers],
              predicted_peak_memory(*engine, 1)[MemoryClass::kGradientBuffers]);
  });
}

/// In hybrids a reduction has a second stage over the replicas. A rank that is blocked in one of
/// the model's collectives does not reach a later hook, and its peers reach that collective only
/// after the second stage, whose buffer they need.
class BlockedBackward : public ::testing::TestWithParam<ProcessGroupOptions::Lane> {};
INSTANTIATE_TEST_SUITE_P(All, BlockedBackward,
                         ::testing::Values(ProcessGroupOptions::Lane::kInline,
                                           ProcessGroupOptions::Lane::kThread),
                         [](const auto& info) {
                           return info.param == ProcessGroupOptions::Lane::kInline ? "in_the_call"
                                                                                   : "in_a_thread";
                         });

TEST_P(BlockedBackward, GoesOnWithBothStagesOfAHybrid) {
  testing::RankThreadOptions threads;
  threads.lane = GetParam();
  const auto train = [](const std::shared_ptr<ProcessGroup>& world) {
    torch::manual_seed(1);
    torch::nn::Sequential model;
    for (int i = 0; i < 6; ++i) model->push_back(torch::nn::Linear(16, 16));
    const Options options{.strategy = Strategy::kHybrid,
                          .degrees = Degrees{2, 2, 2},
                          .wrap = wrap_by_type<torch::nn::Linear>(),
                          .units_in_reduction = 1};
    const auto of_model = duplicate(*world, "of the model");
    const auto engine = parallelize(model, torch::optim::SGDOptions(0.1), options, world);
    int step = 0;
    const auto meet_before = [&](int layer, bool is_blocked) {
      auto met = std::make_shared<int>(-1);  // at the first gradient of each step
      for (const at::Tensor& parameter : model[layer]->parameters()) {
        parameter.register_hook([&, met, is_blocked](const at::Tensor&) {
          if ((world->rank() == step % world->size()) != is_blocked || *met == step) return;
          *met = step;
          of_model->barrier("of the model");
        });
      }
    };
    meet_before(4, true);   // the last layer's reduction has been called
    meet_before(3, false);  // layer 4 has the last one's buffer
    for (; step < 8; ++step) {
      model->forward(at::full({4, 16}, world->rank() + 1.0)).pow(2).mean().backward();
      engine->step();
    }
  };
  run_ranks(4, train, threads);
}

}  // namespace
}  // namespace tessera::internal
