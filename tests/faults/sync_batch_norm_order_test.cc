#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/sync_batch_norm.h"
#include "tessera/tests/support/rank_threads.h"

// SyncBatchNorm's collectives together with the engine's, when ranks run different other layers, as
// docs/buffers.md describes.
namespace tessera::internal::testing {
namespace {

using ::testing::Each;

/// After the normalisation comes a layer that some ranks skip: where it is used, its gradient is
/// complete, and reduced, before the normalisation's backward.
struct BranchingNet : torch::nn::Module {
  explicit BranchingNet(const std::shared_ptr<ProcessGroup>& group) {
    first = register_module("first", torch::nn::Linear(3, 16));
    norm = register_module("norm", tessera::nn::SyncBatchNorm1d(16, group));
    branch = register_module("branch", torch::nn::Linear(16, 16));
  }
  at::Tensor forward(const at::Tensor& input, bool takes_branch) {
    const at::Tensor seen = norm(first(input));
    return (takes_branch ? branch(seen) : seen).pow(2).sum();
  }
  torch::nn::Linear first{nullptr};
  tessera::nn::SyncBatchNorm1d norm{nullptr};
  torch::nn::Linear branch{nullptr};
};

std::vector<std::string> errors_of(bool all_take_it, bool reduces_in_step,
                                   const RankThreadOptions& threads) {
  return run_ranks_expecting_errors(
      2,
      [&](const std::shared_ptr<ProcessGroup>& world) {
        const auto net = std::make_shared<BranchingNet>(world);
        const auto engine =
            parallelize(net, torch::optim::SGDOptions(0.1), {.bucket_bytes = {1024}}, world);
        for (int step = 0; step < 2; ++step) {
          std::optional<Engine::NoSync> no_sync;
          if (reduces_in_step) no_sync.emplace(engine->no_sync());
          net->forward(at::ones({2, 3}) * (world->rank() + 1), all_take_it || world->rank() == 0)
              .backward();
          no_sync.reset();
          engine->step();
        }
      },
      threads);
}

TEST(SyncBatchNormOrder, ABranchThatARankLeavesOutWorksAsReductionsDoNotBlockBackward) {
  EXPECT_THAT(errors_of(true, false, {}), Each(std::string())) << "the control";
  EXPECT_THAT(errors_of(false, true, {}), Each(std::string()));
  EXPECT_THAT(errors_of(false, false, {}), Each(std::string()));
  EXPECT_THAT(errors_of(false, false, {.lane = ProcessGroupOptions::Lane::kThread}),
              Each(std::string()));
}

}  // namespace
}  // namespace tessera::internal::testing
