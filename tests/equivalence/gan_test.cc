#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

// Two engines in one process: the generator's backward runs through the discriminator and leaves
// gradients in it, which must be dropped before the discriminator's own step.

namespace tessera::internal::testing {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

constexpr int kSteps = 4;
constexpr int kRows = 4;

const Subject& generator_subject() { return subject("OddMlp"); }            // 7 -> 5
const Subject& discriminator_subject() { return subject("FrozenLayers"); }  // 7 -> 5

struct Pair {
  Pair(at::ScalarType dtype, uint64_t seed)
      : generator(prepare(generator_subject().make(), dtype, seed)),
        discriminator(prepare(discriminator_subject().make(), dtype, seed + 1)) {}

  at::Tensor fake(const at::Tensor& noise) const {
    return at::constant_pad_nd(generator->forward(noise, {}), {0, 2});
  }
  at::Tensor discriminator_loss(const Batch& batch) const {
    const at::Tensor real = discriminator->forward(batch.input, {});
    const at::Tensor fakes = discriminator->forward(fake(batch.input).detach(), {});
    return at::mse_loss(real, batch.target) + fakes.pow(2).mean();
  }
  at::Tensor generator_loss(const Batch& batch) const {
    return at::mse_loss(discriminator->forward(fake(batch.input), {}), batch.target);
  }
  Tensors parameters() const {
    Tensors all = copy_parameters(*generator);
    for (auto& [name, tensor] : copy_parameters(*discriminator))
      all["discriminator." + name] = tensor;
    return all;
  }

  std::shared_ptr<Net> generator;
  std::shared_ptr<Net> discriminator;
};

Batch batch_at(int step, int rank, at::ScalarType dtype) {
  return batch_of(generator_subject(), dtype, {.name = "", .rows = kRows}, {step, rank}, 0);
}

/// How the discriminator's stale gradients are dropped.
enum class Clearing : uint8_t { kEngine, kOptimizer, kModule, kNever };

Tensors train_pair(at::ScalarType dtype, const Configuration& configuration, Clearing clearing,
                   const std::shared_ptr<ProcessGroup>& world) {
  Pair pair(dtype, 5 + static_cast<uint64_t>(world->rank()));
  const Options options =
      options_of(configuration, {.name = "", .max_grad_norm = 0.2, .bucket_bytes = 1024});
  const auto generator = parallelize(pair.generator, make_plan(*pair.generator), options, world);
  const auto discriminator =
      parallelize(pair.discriminator, make_plan(*pair.discriminator), options, world);
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = batch_at(step, world->rank(), dtype);
    if (clearing == Clearing::kEngine) discriminator->zero_grad();
    if (clearing == Clearing::kOptimizer) discriminator->optimizer().zero_grad();
    if (clearing == Clearing::kModule) pair.discriminator->zero_grad();
    pair.discriminator_loss(batch).backward();
    discriminator->step();
    pair.generator_loss(batch).backward();
    generator->step();
  }
  return pair.parameters();
}

Tensors plain_pair(int size) {
  Pair pair(at::kDouble, 5);
  torch::optim::AdamW generator = plain_optimizer(*pair.generator, make_plan(*pair.generator));
  torch::optim::AdamW discriminator =
      plain_optimizer(*pair.discriminator, make_plan(*pair.discriminator));
  for (int step = 0; step < kSteps; ++step) {
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> targets;
    for (int rank = 0; rank < size; ++rank) {
      const Batch batch = batch_at(step, rank, at::kDouble);
      inputs.push_back(batch.input);
      targets.push_back(batch.target);
    }
    const Batch batch{.input = at::cat(inputs), .target = at::cat(targets)};
    discriminator.zero_grad();
    pair.discriminator_loss(batch).backward();
    torch::nn::utils::clip_grad_norm_(distinct_parameters(*pair.discriminator), 0.2);
    discriminator.step();
    generator.zero_grad();
    pair.generator_loss(batch).backward();
    torch::nn::utils::clip_grad_norm_(distinct_parameters(*pair.generator), 0.2);
    generator.step();
  }
  return pair.parameters();
}

Tensors pair_on_threads(at::ScalarType dtype, const Configuration& configuration, Clearing clearing,
                        int size) {
  std::vector<Tensors> by_rank(static_cast<size_t>(size));
  run_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
    by_rank[static_cast<size_t>(world->rank())] = train_pair(dtype, configuration, clearing, world);
  });
  for (const Tensors& parameters : by_rank) EXPECT_EQ(bit_differences(parameters, by_rank[0]), "");
  return by_rank[0];
}

class TwoEngines : public ::testing::TestWithParam<std::tuple<Configuration, int>> {};

TEST_P(TwoEngines, TrainLikeAPlainLoopHoweverStaleGradientsAreDropped) {
  const auto& [configuration, size] = GetParam();
  const Tensors expected = plain_pair(size);
  for (const Clearing clearing : {Clearing::kEngine, Clearing::kOptimizer, Clearing::kModule}) {
    EXPECT_EQ(
        differences(pair_on_threads(at::kDouble, configuration, clearing, size), expected, 1e-12),
        "")
        << "clearing " << static_cast<int>(clearing);
  }
}

TEST_P(TwoEngines, TrainToTheBitsOfDdp) {
  const auto& [configuration, size] = GetParam();
  EXPECT_EQ(bit_differences(pair_on_threads(at::kFloat, configuration, Clearing::kEngine, size),
                            pair_on_threads(at::kFloat, configuration_of(Strategy::kDdp),
                                            Clearing::kEngine, size)),
            "");
}

/// The negative control: with stale gradients left in place the comparison must fail.
TEST_P(TwoEngines, StaleGradientsWouldShow) {
  const auto& [configuration, size] = GetParam();
  EXPECT_NE(differences(pair_on_threads(at::kDouble, configuration, Clearing::kNever, size),
                        plain_pair(size), 1e-12),
            "");
}

INSTANTIATE_TEST_SUITE_P(, TwoEngines,
                         ::testing::Combine(::testing::ValuesIn(named_configurations()),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_World" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace tessera::internal::testing
