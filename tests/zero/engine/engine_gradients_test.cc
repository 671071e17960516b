#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/core/comm/groups/loopback_group.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/zero/engine/engine_fixture.h"

// The gradients that users see, and every way to drop them.

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class Gradients : public EngineTest {};

TEST_P(Gradients, ShowsTheMeanGradientWhereItIsWholeAndATombstoneElsewhere) {
  on_ranks([this](Rank& rank) {
    const std::shared_ptr<Net> plain = make_net();
    for (int i = 0; i < size(); ++i) (loss_on(*plain, i, 0) / size()).backward();
    rank.loss(0).backward();
    const auto expected = plain->parameters();
    const auto parameters = rank.net->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& grad = parameters[i].grad();
      ASSERT_TRUE(grad.defined());
      EXPECT_EQ(grad.sizes(), parameters[i].sizes());
      if (has_whole_gradients()) {
        EXPECT_TRUE(at::allclose(grad, expected[i].grad(), 1e-12, 1e-14));
      } else {
        EXPECT_THAT([&] { grad.norm(); },
                    ThrowsMessage<c10::Error>(HasSubstr("[grad] the gradient of")));
      }
    }
    if (has_whole_gradients()) {
      EXPECT_GT(torch::nn::utils::clip_grad_norm_(parameters, 1e9), 0.0);
    } else {
      EXPECT_THAT([&] { torch::nn::utils::clip_grad_norm_(parameters, 1.0); },
                  ThrowsMessage<c10::Error>(HasSubstr("[grad] the gradient of")));
    }
    rank.engine->step();
    for (const at::Tensor& parameter : parameters) EXPECT_FALSE(parameter.grad().defined());
  });
}

/// The sum is not divided by the mean weight yet, which is known only in step().
TEST_P(Gradients, ShowsTheWeightedSumByTheRanksWhereItIsWhole) {
  on_ranks([this](Rank& rank) {
    const auto weight_of = [](int of) { return 1.0 + 2.0 * of; };
    const std::shared_ptr<Net> plain = make_net();
    for (int i = 0; i < size(); ++i) (loss_on(*plain, i, 0) * weight_of(i) / size()).backward();
    rank.engine->backward(rank.loss(0), {.weight = weight_of(rank.world->rank())});
    const auto expected = plain->parameters();
    const auto parameters = rank.net->parameters();
    for (size_t i = 0; i < parameters.size() && has_whole_gradients(); ++i) {
      EXPECT_TRUE(at::allclose(parameters[i].grad(), expected[i].grad(), 1e-12, 1e-14));
    }
    rank.engine->step();
    for (const at::Tensor& parameter : parameters) EXPECT_FALSE(parameter.grad().defined());
  });
}

TEST_P(Gradients, ClippedByHandUnderDdpAreThoseClippedByOption) {
  run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
    const Rank by_hand(world, configuration_of(Strategy::kDdp));
    const Rank by_option(world, configuration(), 0.05);
    for (int step = 0; step < 3; ++step) {
      by_hand.loss(step).backward();
      torch::nn::utils::clip_grad_norm_(by_hand.net->parameters(), 0.05);
      by_hand.engine->step();
      by_option.train(step);
    }
    EXPECT_EQ(differences(copy_parameters(*by_hand.net), copy_parameters(*by_option.net), 1e-12),
              "");
  });
}

/// However a gradient is dropped, training continues as if its backward had not run.
TEST_P(Gradients, EveryWayToClearGradientsDropsThem) {
  on_ranks([this](Rank& rank) {
    Rank reference(rank.world, configuration());
    rank.loss(50).backward();
    rank.engine->zero_grad();
    rank.loss(51).backward();
    rank.engine->optimizer().zero_grad();
    rank.loss(52).backward();
    rank.net->zero_grad();
    rank.loss(53).backward();
    for (const at::Tensor& parameter : rank.net->parameters()) parameter.mutable_grad().reset();
    {
      const Engine::NoSync no_sync = rank.engine->no_sync();
      rank.loss(54).backward();
    }
    rank.engine->optimizer().zero_grad();
    EXPECT_EQ(rank.train(0).grad_norm, reference.train(0).grad_norm);
    EXPECT_EQ(bit_differences(copy_parameters(*rank.net), copy_parameters(*reference.net)), "");
  });
}

TEST_P(Gradients, StepAfterClearingIsAStepWithoutBackward) {
  on_ranks([](Rank& rank) {
    rank.loss(0).backward();
    rank.engine->optimizer().zero_grad();
    EXPECT_THAT([&] { rank.engine->step(); },
                ThrowsMessage<c10::Error>(HasSubstr("called step() without a backward")));
    EXPECT_TRUE(rank.train(0).committed);
  });
}

TEST_P(Gradients, ClearingOneGradientLeavesThatParameterAlone) {
  on_ranks([](Rank& rank) {
    rank.train(0);
    const auto before = copy_parameters(*rank.net);
    rank.loss(1).backward();
    rank.net->named_parameters()["layer1.weight"].mutable_grad().reset();
    const StepResult result = rank.engine->step();
    EXPECT_EQ(result.used_parameters, static_cast<int64_t>(before.size()) - 1);
    const auto after = copy_parameters(*rank.net);
    for (const auto& [name, values] : before) {
      EXPECT_EQ(at::equal(after.at(name), values), name == "layer1.weight") << name;
    }
  });
}

/// autograd::grad() does not change the engine's gradients.
TEST_P(Gradients, AutogradGradDoesNotCount) {
  on_ranks([this](Rank& rank) {
    Rank reference(rank.world, configuration());
    rank.loss(0).backward();
    torch::autograd::grad({rank.loss(9)}, rank.net->parameters());
    rank.engine->step();
    reference.train(0);
    EXPECT_EQ(bit_differences(copy_parameters(*rank.net), copy_parameters(*reference.net)), "");
  });
}

/// A gradient penalty: the loss depends on a gradient, so backward runs through a backward.
TEST_P(Gradients, TrainsThroughADoubleBackward) {
  const auto penalty = [](Net& net, int rank) {
    const at::Tensor input = batch_of(subject("OddMlp"), at::kDouble, {.name = ""}, {0, rank}, 0)
                                 .input.set_requires_grad(true);
    const at::Tensor output = net.forward(input, {}).sum();
    const at::Tensor gradient = torch::autograd::grad({output}, {input}, {}, /*retain_graph=*/true,
                                                      /*create_graph=*/true)[0];
    return gradient.pow(2).sum() + output;
  };
  on_ranks([&](Rank& rank) {
    const std::shared_ptr<Net> plain = make_net();
    torch::optim::AdamW optimizer(plain->parameters(), adamw());
    for (int i = 0; i < size(); ++i) (penalty(*plain, i) / size()).backward();
    optimizer.step();
    penalty(*rank.net, rank.world->rank()).backward();
    rank.engine->step();
    EXPECT_EQ(differences(copy_parameters(*rank.net), copy_parameters(*plain), 1e-12), "");
  });
}

TEST_P(Gradients, AKeptGraphMayRunTwice) {
  on_ranks([this](Rank& rank) {
    Rank reference(rank.world, configuration());
    const at::Tensor loss = rank.loss(0);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    reference.loss(0).backward();
    reference.loss(0).backward();
    EXPECT_EQ(rank.engine->step().grad_norm, reference.engine->step().grad_norm);
    EXPECT_EQ(bit_differences(copy_parameters(*rank.net), copy_parameters(*reference.net)), "");
  });
}

INSTANTIATE_TEST_SUITE_P(, Gradients, configurations_and_worlds(), name_of);

}  // namespace
}  // namespace tessera::internal::testing
