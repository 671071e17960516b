#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/activation_checkpoint.h"
#include "tessera/parallelize.h"
#include "tessera/sync_batch_norm.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/engine_rank.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

// A model with SyncBatchNorm trains under every strategy to the same bits, and like the model with
// BatchNorm in one process on the rows of all ranks.

namespace tessera::internal::testing {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

/// A convolution and two normalisations.
template <typename Norm2d, typename Norm1d>
struct NormNet : torch::nn::Module {
  template <typename... Group>
  explicit NormNet(const Group&... group) {
    using torch::nn::BatchNormOptions;
    conv =
        register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 5, 3).bias(false)));
    norm = register_module("norm", Norm2d(BatchNormOptions(5), group...));
    hidden =
        register_module("hidden", torch::nn::Linear(torch::nn::LinearOptions(20, 7).bias(false)));
    plain = register_module(
        "plain", Norm1d(BatchNormOptions(7).affine(false).momentum(std::nullopt), group...));
    last = register_module("last", torch::nn::Linear(7, 3));
    to(at::kDouble);
    for (const auto& buffer : named_buffers()) {
      if (buffer.value().dim() == 0) buffer.value().set_data(buffer.value().to(at::kLong));
    }
    auto generator = at::detail::createCPUGenerator(4);
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : parameters()) {
      parameter.copy_(at::randn(parameter.sizes(), generator, at::kDouble) * 0.5);
    }
  }
  /// The loss of each row.
  at::Tensor losses(const at::Tensor& rows, bool recomputes) {
    const auto block = [this](const at::Tensor& x) { return torch::relu(norm(conv(x))); };
    const at::Tensor seen = recomputes ? checkpoint(block, rows) : block(rows);
    return last(torch::tanh(plain(hidden(seen.flatten(1))))).pow(2).sum(1);
  }

  torch::nn::Conv2d conv{nullptr};
  Norm2d norm{nullptr};
  torch::nn::Linear hidden{nullptr};
  Norm1d plain{nullptr};
  torch::nn::Linear last{nullptr};
};
using SyncedNet = NormNet<tessera::nn::SyncBatchNorm2d, tessera::nn::SyncBatchNorm1d>;
using PlainNet = NormNet<torch::nn::BatchNorm2d, torch::nn::BatchNorm1d>;

constexpr int kNormSteps = 3;
constexpr double kNormTolerance = 1e-12;

/// The number of rows of each rank; in the second one rank 1 has none.
std::vector<int64_t> rows_by_rank(int world) {
  std::vector<int64_t> rows(static_cast<size_t>(world));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>((i * 3 + 5) % 6);
  return rows;  // 5, 2, 5, 2
}
std::vector<int64_t> rows_with_none(int world) {
  std::vector<int64_t> rows = rows_by_rank(world);
  if (world > 1) rows[1] = 0;
  return rows;
}

at::Tensor rows_of_step(int step, int64_t count) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(77 + step));
  return at::randn({count, 2, 4, 4}, generator, at::kDouble) + 0.5;
}

/// Not Adam: a parameter that normalisation makes irrelevant has a gradient of rounding errors
/// only, which Adam would amplify.
torch::optim::SGDOptions norm_sgd() { return torch::optim::SGDOptions(0.05).momentum(0.9); }

Tensors tensors_of(const torch::nn::Module& model) {
  Tensors tensors = copy_parameters(model);
  for (const auto& buffer : model.named_buffers()) {
    tensors[buffer.key()] = buffer.value().to(at::kDouble, false, /*copy=*/true);
  }
  return tensors;
}

Tensors train_plain(const std::vector<int64_t>& rows) {
  const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  PlainNet net;
  torch::optim::SGD optimizer(net.parameters(), norm_sgd());
  for (int step = 0; step < kNormSteps; ++step) {
    optimizer.zero_grad();
    net.losses(rows_of_step(step, total), false).mean().backward();
    optimizer.step();
  }
  return tensors_of(net);
}

/// Trains on ranks; throws if they end with different bits.
Tensors train_synced(const std::vector<int64_t>& rows, const Options& options,
                     bool recomputes = false, const RankThreadOptions& threads = {},
                     bool weighs = false) {
  const auto world_size = static_cast<int>(rows.size());
  const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  std::vector<Tensors> by_rank(rows.size());
  run_ranks(
      world_size,
      [&](const std::shared_ptr<ProcessGroup>& world) {
        const auto rank = static_cast<size_t>(world->rank());
        const int64_t begin =
            std::accumulate(rows.begin(), rows.begin() + world->rank(), int64_t{0});
        const auto net = std::make_shared<SyncedNet>(duplicate(*world, "batch norm"));
        const auto engine = parallelize(net, norm_sgd(), options, world);
        for (int step = 0; step < kNormSteps; ++step) {
          const at::Tensor mine = rows_of_step(step, total).narrow(0, begin, rows[rank]);
          // With this weight the engine's mean over ranks is the mean over all rows.
          const double weight = static_cast<double>(world_size) / static_cast<double>(total);
          const at::Tensor losses = net->losses(mine, recomputes);
          if (weighs) {
            const at::Tensor loss = rows[rank] == 0 ? losses.sum() : losses.mean();
            engine->backward(loss, {.weight = static_cast<double>(rows[rank])});
          } else {
            (losses.sum() * weight).backward();
          }
          engine->step();
        }
        const auto whole = engine->full_parameters();
        by_rank[rank] = tensors_of(*net);
      },
      threads);
  for (const Tensors& tensors : by_rank) EXPECT_EQ(bit_differences(tensors, by_rank[0]), "");
  return by_rank[0];
}

TEST(SyncBatchNormEquivalence, EveryStrategyTrainsAsBatchNormOnAllRows) {
  for (const int world : {1, 2, 3, 4}) {
    for (const auto& rows : {rows_by_rank(world), rows_with_none(world)}) {
      const Tensors plain = train_plain(rows);
      const Tensors ddp = train_synced(rows, small_options_of(configuration_of(Strategy::kDdp)));
      for (const Configuration& configuration : configurations_of_world(world)) {
        SCOPED_TRACE(::testing::Message()
                     << configuration << " at " << world << ", rows of each rank "
                     << ::testing::PrintToString(rows));
        const Tensors synced = train_synced(rows, small_options_of(configuration));
        EXPECT_EQ(differences(synced, plain, kNormTolerance), "");
        EXPECT_TRUE(!configuration.keeps_bits() || bit_differences(synced, ddp).empty())
            << bit_differences(synced, ddp);
      }
    }
  }
}

/// Gradients that a rank's loss adds on other ranks are scaled by its own weight, not by theirs.
TEST(SyncBatchNormEquivalence, WeightsCountLossesOfAllRanks) {
  for (const int world : {2, 3}) {
    for (const auto& rows : {rows_by_rank(world), rows_with_none(world)}) {
      const Tensors plain = train_plain(rows);
      for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
        const Tensors synced = train_synced(rows, small_options_of(configuration_of(strategy)),
                                            /*recomputes=*/false, {}, /*weighs=*/true);
        EXPECT_EQ(differences(synced, plain, kNormTolerance), "") << to_string(strategy);
      }
    }
  }
}

TEST(SyncBatchNormEquivalence, SamplesOfALossOfWeight0AreRefused) {
  const auto errors = run_ranks_expecting_errors(2, [](const std::shared_ptr<ProcessGroup>& world) {
    const auto net = std::make_shared<SyncedNet>(duplicate(*world, "batch norm"));
    const auto engine =
        parallelize(net, norm_sgd(), small_options_of(configuration_of(Strategy::kDdp)), world);
    engine->backward(net->losses(rows_of_step(0, 3), false).mean(),
                     {.weight = world->rank() == 0 ? 0.0 : 3.0});
  });
  EXPECT_NE(errors[0].find("backward: got a loss of weight 0 for a batch of 3 samples"),
            std::string::npos)
      << errors[0];
  EXPECT_NE(errors[1].find("rank 0 left backward by an exception"), std::string::npos) << errors[1];
}

TEST(SyncBatchNormEquivalence, RecomputationAndLanesChangeNoBit) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
    for (const Configuration& configuration :
         {configuration_of(strategy), hostile(configuration_of(strategy))}) {
      if (configuration.free_eagerly && strategy == Strategy::kDdp) continue;
      SCOPED_TRACE(configuration);
      const auto rows = rows_with_none(3);
      const Options options = small_options_of(configuration);
      const Tensors expected = train_synced(rows, options);
      EXPECT_EQ(bit_differences(train_synced(rows, options, false,
                                             {.lane = ProcessGroupOptions::Lane::kThread}),
                                expected),
                "");
      Tensors recomputed = train_synced(rows, options, /*recomputes=*/true);
      for (auto& [name, tensor] : recomputed) {
        // The recomputed block's running statistics are updated twice per step.
        if (name.starts_with("norm.running") || name.starts_with("norm.num")) {
          tensor = expected.at(name);
        }
      }
      EXPECT_EQ(bit_differences(recomputed, expected), "");
    }
  }
}

/// The negative control: with statistics of each rank's own rows the result differs.
TEST(SyncBatchNormEquivalence, BatchNormOfOwnRowsIsSeenToDiffer) {
  const auto rows = rows_by_rank(3);
  Tensors own;
  run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& world) {
    const auto net =
        std::make_shared<SyncedNet>(split(*world, {0, 1, 2}, "alone"));  // each rank alone
    const auto engine =
        parallelize(net, norm_sgd(), small_options_of(configuration_of(Strategy::kDdp)), world);
    const int64_t begin = std::accumulate(rows.begin(), rows.begin() + world->rank(), int64_t{0});
    for (int step = 0; step < kNormSteps; ++step) {
      const at::Tensor mine =
          rows_of_step(step, 12).narrow(0, begin, rows[static_cast<size_t>(world->rank())]);
      (net->losses(mine, false).sum() * (3.0 / 12.0)).backward();
      engine->step();
    }
    if (world->rank() == 0) own = tensors_of(*net);
  });
  EXPECT_NE(differences(own, train_plain(rows), 1e-6), "");
}

/// Like BatchNorm's, its parameters stay in fp32 beside 16-bit ones.
TEST(SyncBatchNormEquivalence, KeepsItsPrecision) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    struct Small : torch::nn::Module {
      explicit Small(const std::shared_ptr<ProcessGroup>& group)
          : linear(register_module("linear", torch::nn::Linear(3, 4))),
            norm(register_module("norm", tessera::nn::SyncBatchNorm1d(4, group))) {}
      torch::nn::Linear linear;
      tessera::nn::SyncBatchNorm1d norm;
    } net(world);  // no std::shared_ptr holds it
    const auto engine =
        parallelize(net, norm_sgd(), {.precision = {.parameters = at::kBFloat16}}, world);
    EXPECT_EQ(net.linear->weight.scalar_type(), at::kBFloat16);
    EXPECT_EQ(net.norm->weight.scalar_type(), at::kFloat);
    const at::Tensor output = net.norm(net.linear(at::randn({3, 3}).to(at::kBFloat16)));
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    output.pow(2).sum().backward();
    EXPECT_TRUE(engine->step().committed);
  });
}

}  // namespace
}  // namespace tessera::internal::testing
