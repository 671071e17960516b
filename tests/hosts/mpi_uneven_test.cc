// Ranks with different numbers of batches and batches of different sizes, over MPI (the fake): with
// weights and join() they end with the same bits as over shared memory.
#include <array>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/tests/core/comm/mpi/mpi_ranks.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

/// The number of batches of each rank.
constexpr std::array<int, 4> kNumberOfBatches = {2, 4, 3, 0};

std::vector<Batch> uneven_batches(const Subject& subject, int rank) {
  std::vector<Batch> batches;
  for (int i = 0; i < kNumberOfBatches[static_cast<size_t>(rank)]; ++i) {
    batches.push_back(draw_batch(subject, at::kFloat, 1 + (rank + 2 * i) % 4,
                                 static_cast<uint64_t>(7000 + 100 * rank + i)));
  }
  return batches;
}

std::map<std::string, at::Tensor> train_unevenly(const Configuration& configuration,
                                                 const std::shared_ptr<ProcessGroup>& world) {
  const Subject& trained = subject("OddMlp");
  const int rank = world->rank();
  const std::shared_ptr<Net> net =
      prepare(trained.make(), at::kFloat, kModelSeed + static_cast<uint64_t>(rank));
  Options options = options_of(configuration);
  set_buckets(options, configuration, 1024);
  options.max_grad_norm = 0.05;
  const std::unique_ptr<Engine> engine = parallelize(net, make_plan(*net), options, world);
  std::vector<Batch> batches = uneven_batches(trained, rank);
  for (const Batch& batch : engine->join(batches)) {
    const at::Tensor loss = at::mse_loss(net->forward(batch.input, {0, rank}), batch.target);
    engine->backward(loss, {.weight = static_cast<double>(batch.input.size(0))});
    engine->step();
  }
  const auto whole = engine->full_parameters();
  return copy_parameters(*net);
}

class MpiUneven : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, MpiUneven, ::testing::Values(2, 3, 4));

TEST_P(MpiUneven, WeightsAndJoinHaveTheBitsOfSharedMemory) {
  const auto trained = [&](const Configuration& configuration, const Decorate& decorate) {
    std::vector<std::map<std::string, at::Tensor>> by_rank(static_cast<size_t>(GetParam()));
    run_ranks(GetParam(), [&](std::shared_ptr<ProcessGroup> world) {
      const auto rank = static_cast<size_t>(world->rank());
      if (decorate) world = decorate(std::move(world));
      // Ranks that gather together cannot continue without a rank whose batches are used up.
      if (configuration.splits_parameters() && !world->can().one_sided_reads) return;
      by_rank[rank] = train_unevenly(configuration, world);
    });
    for (const auto& parameters : by_rank) {
      EXPECT_EQ(bit_differences(parameters, by_rank[0]), "") << "ranks differ";
    }
    return by_rank[0];
  };
  const auto expected = trained(configuration_of(Strategy::kDdp), {});
  int compared = 0;
  for (const Configuration& configuration : named_and_apart_configurations()) {
    const auto got = trained(configuration, over_mpi(GetParam()));
    if (got.empty()) continue;
    EXPECT_EQ(bit_differences(got, expected), "") << configuration;
    ++compared;
  }
  EXPECT_GE(compared, 5);
}

}  // namespace
}  // namespace tessera::internal::testing
