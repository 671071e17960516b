#include <gtest/gtest.h>

#include <map>
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

// A GAN with gradient penalty: the critic's loss contains autograd::grad with create_graph, so its
// backward goes through another backward. Split parameters are freed after the forward and after
// the inner backward, and gathered again for the next one.

namespace tessera::internal::testing {
namespace {

namespace nn = torch::nn;
using Tensors = std::map<std::string, at::Tensor>;

constexpr int kPenalizedSteps = 4;
constexpr int kPenalizedRows = 3;
constexpr int kPenalizedNoise = 5;

/// How backward runs for the critic's three terms; kNoPenalty leaves out one of them.
enum class Backwards : uint8_t { kOne, kThree, kNoPenalty };

struct PenaltyDraw {
  at::Tensor real;   ///< [rows, 2, 6, 6]
  at::Tensor noise;  ///< [rows, kPenalizedNoise]
  at::Tensor mix;    ///< [rows, 1, 1, 1]
};

PenaltyDraw penalty_draw(int step, int rank, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 * step + rank));
  const auto normal = [&](at::IntArrayRef sizes) {
    return at::randn(sizes, generator, at::kDouble).to(dtype);
  };
  return {normal({kPenalizedRows, 2, 6, 6}), normal({kPenalizedRows, kPenalizedNoise}),
          at::rand({kPenalizedRows, 1, 1, 1}, generator, at::kDouble).to(dtype)};
}

struct PenalizedPair {
  PenalizedPair(at::ScalarType dtype, uint64_t seed)
      : generator(nn::Linear(kPenalizedNoise, 7), nn::Tanh(), nn::Linear(7, 2 * 6 * 6),
                  nn::Unflatten(nn::UnflattenOptions(1, {2, 6, 6}))),
        critic(nn::Conv2d(nn::Conv2dOptions(2, 5, 3).stride(2).padding(1)), nn::Tanh(),
               nn::Conv2d(nn::Conv2dOptions(5, 3, 3)), nn::Softplus(), nn::Flatten(),
               nn::Linear(nn::LinearOptions(3, 1).bias(false))) {
    generator->to(dtype);
    critic->to(dtype);
    draw_parameters(*generator, seed);
    draw_parameters(*critic, seed + 1);
  }

  at::Tensor penalty(const PenaltyDraw& draw, const at::Tensor& fake) {
    const at::Tensor between = (draw.mix * draw.real + (1 - draw.mix) * fake).requires_grad_();
    const at::Tensor slope =
        torch::autograd::grad({critic->forward(between).sum()}, {between}, /*grad_outputs=*/{},
                              /*retain_graph=*/true, /*create_graph=*/true)[0];
    return 10 * (slope.flatten(1).norm(2, /*dim=*/1) - 1).pow(2).mean();
  }
  void critic_backward(const PenaltyDraw& draw, Backwards backwards) {
    const at::Tensor fake = generator->forward(draw.noise).detach();
    const at::Tensor of_fake = critic->forward(fake).mean();
    const at::Tensor of_real = -critic->forward(draw.real).mean();
    if (backwards == Backwards::kOne) return (of_fake + of_real + penalty(draw, fake)).backward();
    of_fake.backward();
    of_real.backward();
    if (backwards == Backwards::kThree) penalty(draw, fake).backward();
  }
  at::Tensor generator_loss(const PenaltyDraw& draw) {
    return -critic->forward(generator->forward(draw.noise)).mean();
  }
  Tensors parameters() const {
    Tensors all = copy_parameters(*generator);
    for (auto& [name, tensor] : copy_parameters(*critic)) all["critic." + name] = tensor;
    return all;
  }

  nn::Sequential generator;
  nn::Sequential critic;
};

torch::optim::AdamWOptions penalized_adam() {
  return torch::optim::AdamWOptions(0.01).betas({0.5, 0.9}).eps(1e-6).weight_decay(0);
}

Tensors train_penalized(at::ScalarType dtype, const Configuration& configuration,
                        Backwards backwards, const std::shared_ptr<ProcessGroup>& world) {
  PenalizedPair pair(dtype, 5 + static_cast<uint64_t>(world->rank()));
  const Options options = options_of(configuration);
  const auto generator = parallelize(pair.generator, penalized_adam(), options, world);
  const auto critic = parallelize(pair.critic, penalized_adam(), options, world);
  for (int step = 0; step < kPenalizedSteps; ++step) {
    const PenaltyDraw draw = penalty_draw(step, world->rank(), dtype);
    critic->zero_grad();
    pair.critic_backward(draw, backwards);
    critic->step();
    if (step % 2 == 0) continue;
    pair.generator_loss(draw).backward();
    generator->step();
  }
  return pair.parameters();
}

Tensors plain_penalized(int size) {
  PenalizedPair pair(at::kDouble, 5);
  const auto options = torch::optim::AdamOptions(0.01).betas({0.5, 0.9}).eps(1e-6);
  torch::optim::Adam generator(pair.generator->parameters(), options);
  torch::optim::Adam critic(pair.critic->parameters(), options);
  for (int step = 0; step < kPenalizedSteps; ++step) {
    std::vector<at::Tensor> real, noise, mix;
    for (int rank = 0; rank < size; ++rank) {
      const PenaltyDraw draw = penalty_draw(step, rank, at::kDouble);
      real.push_back(draw.real);
      noise.push_back(draw.noise);
      mix.push_back(draw.mix);
    }
    const PenaltyDraw draw{at::cat(real), at::cat(noise), at::cat(mix)};
    critic.zero_grad();
    pair.critic_backward(draw, Backwards::kOne);
    critic.step();
    if (step % 2 == 0) continue;
    generator.zero_grad();
    pair.generator_loss(draw).backward();
    generator.step();
  }
  return pair.parameters();
}

Tensors penalized_on_threads(at::ScalarType dtype, const Configuration& configuration,
                             Backwards backwards, int size) {
  std::vector<Tensors> by_rank(static_cast<size_t>(size));
  run_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
    by_rank[static_cast<size_t>(world->rank())] =
        train_penalized(dtype, configuration, backwards, world);
  });
  for (const Tensors& parameters : by_rank) EXPECT_EQ(bit_differences(parameters, by_rank[0]), "");
  return by_rank[0];
}

class GradientPenalty : public ::testing::TestWithParam<int> {};

TEST_P(GradientPenalty, TrainsLikeAPlainLoopUnderEveryConfiguration) {
  const int size = GetParam();
  const Tensors expected = plain_penalized(size);
  for (const Configuration& configuration : configurations_of_world(size)) {
    for (const Backwards backwards : {Backwards::kOne, Backwards::kThree}) {
      EXPECT_EQ(differences(penalized_on_threads(at::kDouble, configuration, backwards, size),
                            expected, 1e-12),
                "")
          << configuration << ", backwards " << static_cast<int>(backwards);
    }
  }
}

TEST_P(GradientPenalty, TrainsToTheBitsOfDdp) {
  const int size = GetParam();
  const Tensors ddp =
      penalized_on_threads(at::kFloat, configuration_of(Strategy::kDdp), Backwards::kOne, size);
  for (const Configuration& configuration : configurations_of_world(size)) {
    if (!configuration.keeps_bits()) continue;
    EXPECT_EQ(bit_differences(
                  penalized_on_threads(at::kFloat, configuration, Backwards::kOne, size), ddp),
              "")
        << configuration;
  }
}

/// The negative control: the comparison detects a missing penalty.
TEST_P(GradientPenalty, ItsAbsenceWouldShow) {
  const int size = GetParam();
  const Configuration zero3 = configuration_of(Strategy::kZero3);
  EXPECT_NE(differences(penalized_on_threads(at::kDouble, zero3, Backwards::kNoPenalty, size),
                        plain_penalized(size), 1e-12),
            "");
}

INSTANTIATE_TEST_SUITE_P(World, GradientPenalty, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace tessera::internal::testing
