#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/given_gradients.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/zero/engine/engine_fixture.h"

// Mixes Engine::accumulate() with backward, and tests its refusals.
// equivalence/given_gradients_test.cc shows that it has backward's bits with every model.

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Given = std::vector<NamedTensor>;

class Accumulate : public EngineTest {
 protected:
  static Given given(const Rank& rank, int step) {
    return gradients_of(*rank.engine, rank.loss(step));
  }
  static void expect_equal(const Rank& rank, const Rank& reference) {
    EXPECT_EQ(bit_differences(copy_parameters(*rank.net), copy_parameters(*reference.net)), "");
  }
};

TEST_P(Accumulate, AddsToWhatBackwardsHaveAndTheOtherWayRound) {
  on_ranks([this](Rank& rank) {
    const Rank reference(rank.world, configuration());
    for (int step = 0; step < 2; ++step) {
      for (int micro = 0; micro < 4; ++micro) {
        reference.backward(4 * step + micro);
        if ((step + micro) % 2 == 0) {
          rank.backward(4 * step + micro);
        } else {
          rank.engine->accumulate(given(rank, 4 * step + micro));
        }
      }
      EXPECT_EQ(rank.engine->step().grad_norm, reference.engine->step().grad_norm);
    }
    expect_equal(rank, reference);
  });
}

TEST_P(Accumulate, OnlyAddsLocallyInsideNoSync) {
  on_ranks([this](Rank& rank) {
    const Rank reference(rank.world, configuration());
    for (int step = 0; step < 2; ++step) {
      const auto both = [&](int batch) {
        reference.backward(batch);
        rank.engine->accumulate(given(rank, batch));
      };
      {
        const Engine::NoSync scope = rank.engine->no_sync();
        const Engine::NoSync scope_of_reference = reference.engine->no_sync();
        both(3 * step);
        both(3 * step + 1);
      }
      if (step == 0) both(2);  // in step 1 step() reduces
      EXPECT_EQ(rank.engine->step().grad_norm, reference.engine->step().grad_norm);
    }
    expect_equal(rank, reference);
  });
}

TEST_P(Accumulate, AveragesWhatOneRankUsesAlone) {
  on_ranks([this](Rank& rank) {
    const int alone = size() - 1;
    Given gradients = given(rank, 0);
    const at::Tensor first = gradients[0].tensor;
    if (rank.world->rank() != alone) gradients.clear();
    gradients.resize(std::min<size_t>(gradients.size(), 1));
    const auto before = copy_parameters(*rank.net);
    rank.engine->accumulate(gradients);
    const StepResult result = rank.engine->step();
    EXPECT_EQ(result.used_parameters, 1);
    double norm = first.norm().item<double>() / size();
    rank.world->broadcast(at::from_blob(&norm, {1}, at::kDouble), alone, "norm")->wait();
    EXPECT_NEAR(result.grad_norm, norm, 1e-12 * norm);
    const std::string name = rank.engine->parameters()[0].name;
    for (const auto& [key, values] : copy_parameters(*rank.net)) {
      EXPECT_EQ(at::equal(values, before.at(key)), key != name) << key;
    }
  });
}

TEST_P(Accumulate, OfNothingOnAnyRankIsABackwardThatUsesNothing) {
  on_ranks([](Rank& rank) {
    const auto before = copy_parameters(*rank.net);
    rank.engine->accumulate({});
    const StepResult result = rank.engine->step();
    EXPECT_TRUE(result.committed);
    EXPECT_EQ(result.used_parameters, 0);
    EXPECT_EQ(bit_differences(copy_parameters(*rank.net), before), "");
  });
}

TEST_P(Accumulate, ShowsAndDropsGradientsAsBackwardDoes) {
  on_ranks([this](Rank& rank) {
    const Rank reference(rank.world, configuration());
    rank.engine->accumulate(given(rank, 7));
    EXPECT_TRUE(rank.net->parameters()[0].grad().defined());
    rank.engine->zero_grad();
    EXPECT_FALSE(rank.net->parameters()[0].grad().defined());
    rank.engine->accumulate(given(rank, 8));
    rank.net->zero_grad();
    rank.engine->accumulate(given(rank, 0));
    reference.backward(0);
    EXPECT_EQ(rank.engine->step().grad_norm, reference.engine->step().grad_norm);
    expect_equal(rank, reference);
  });
}

struct Mistake {
  std::string name;
  std::function<void(Given&)> make;
  std::string text;
};

std::vector<Mistake> mistakes() {
  return {
      {"unknown name", [](Given& all) { all[1].name = "layer9"; },
       "gradient of 'layer9': no parameter of this engine has that name"},
      {"shape",
       [](Given& all) {
         all[0].tensor = at::zeros({1, 2}, at::kDouble);
       },
       "got shape [1, 2], expected "},
      {"dtype", [](Given& all) { all[0].tensor = all[0].tensor.to(at::kFloat); },
       "got Float, expected Double"},
      {"device", [](Given& all) { all[0].tensor = all[0].tensor.to(at::kMeta); },
       "got one on meta, expected it on cpu"},
      {"sparse index",
       [](Given& all) {
         const at::Tensor& dense = all[0].tensor;
         all[0].tensor =
             at::_sparse_coo_tensor_unsafe(at::full({1, 1}, dense.size(0), at::kLong),
                                           at::ones_like(dense.narrow(0, 0, 1)), dense.sizes());
       },
       "got a sparse element with index "},
      {"negative sparse index",
       [](Given& all) {
         const at::Tensor& dense = all[0].tensor;
         all[0].tensor = at::_sparse_coo_tensor_unsafe(
             at::full({1, 1}, -1, at::kLong), at::ones_like(dense.narrow(0, 0, 1)), dense.sizes());
       },
       "got a sparse element with index -1 in dimension 0, expected 0 to "},
      {"twice", [](Given& all) { all.push_back(all[0]); }, "got a second one (the first as '"},
      {"two mistakes",
       [](Given& all) {
         all[0].name = "a";
         all[1].name = "b";
       },
       "gradient of 'b': no parameter"},
  };
}

TEST_P(Accumulate, AMistakeOfOneRankIsThrownOnAllAndAddsNothing) {
  on_ranks([this](Rank& rank) {
    const Rank reference(rank.world, configuration());
    const int culprit = size() - 1;
    const std::string rank_text =
        "[accumulate] " + (size() == 1 ? std::string("rank 0") : "rank " + std::to_string(culprit));
    rank.backward(0);
    reference.backward(0);
    for (const Mistake& mistake : mistakes()) {
      Given gradients = given(rank, 1);
      if (rank.world->rank() == culprit) mistake.make(gradients);
      EXPECT_THAT(message_of([&] { rank.engine->accumulate(gradients); }),
                  AllOf(HasSubstr(rank_text), HasSubstr(mistake.text)))
          << mistake.name;
    }
    rank.engine->accumulate(given(rank, 1));
    reference.backward(1);
    EXPECT_EQ(rank.engine->step().grad_norm, reference.engine->step().grad_norm);
    expect_equal(rank, reference);
  });
}

TEST_P(Accumulate, InsideABackwardOfOneRankIsThrownOnAll) {
  on_ranks([this](Rank& rank) {
    const Rank reference(rank.world, configuration());
    const auto accumulate = [&] { rank.engine->accumulate(given(rank, 0)); };
    std::string message;
    if (rank.world->rank() == size() - 1) {
      const Given gradients = given(rank, 0);
      const at::Tensor elsewhere = torch::ones({1}, torch::requires_grad());
      const at::Tensor product = elsewhere * 2;
      product.register_hook([&](const at::Tensor&) { rank.engine->accumulate(gradients); });
      message = message_of([&] { product.sum().backward(); });
    } else {
      message = message_of(accumulate);
    }
    EXPECT_THAT(message, HasSubstr("called inside backward; call it after backward has returned"));
    accumulate();
    reference.backward(0);
    EXPECT_EQ(rank.engine->step().grad_norm, reference.engine->step().grad_norm);
  });
}

TEST_P(Accumulate, AnAssignedGradIsThrownOnAll) {
  on_ranks([this](Rank& rank) {
    const at::Tensor parameter = rank.net->parameters()[0];
    const bool is_culprit = rank.world->rank() == size() - 1;
    if (is_culprit) parameter.mutable_grad() = at::zeros(parameter.sizes(), at::kDouble);
    EXPECT_THAT(message_of([&] { rank.engine->accumulate(given(rank, 0)); }),
                HasSubstr(".grad was assigned outside the engine"));
    if (is_culprit) parameter.mutable_grad().reset();
    rank.engine->accumulate(given(rank, 0));
    EXPECT_TRUE(rank.engine->step().committed);
  });
}

TEST_P(Accumulate, AMistakeInsideNoSyncIsThisRanksUntilItIsRepeated) {
  on_ranks([this](Rank& rank) {
    const Rank reference(rank.world, configuration());
    {
      const Engine::NoSync scope = rank.engine->no_sync();
      const Engine::NoSync scope_of_reference = reference.engine->no_sync();
      reference.backward(0);
      Given gradients = given(rank, 0);
      if (rank.world->rank() == size() - 1) {
        EXPECT_THAT(message_of([&] {
                      rank.engine->accumulate({{"nothing", gradients[0].tensor}});
                    }),
                    HasSubstr("gradient of 'nothing': no parameter"));
      }
      rank.engine->accumulate(gradients);
    }
    EXPECT_EQ(rank.engine->step().grad_norm, reference.engine->step().grad_norm);
    expect_equal(rank, reference);
  });
}

INSTANTIATE_TEST_SUITE_P(, Accumulate, configurations_and_worlds(), name_of);

TEST(AccumulateControl, ARankThatLeavesOutACallInNoSyncIsRefusedByTheVote) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    OddRank rank(world, small_options_of(configuration_of(Strategy::kZero2)));
    {
      const Engine::NoSync scope = rank.engine->no_sync();
      if (world->rank() == 0) rank.engine->accumulate(gradients_of(*rank.engine, rank.loss(0)));
    }
    const std::string message = message_of([&] {
      rank.engine->accumulate(gradients_of(*rank.engine, rank.loss(1)));
      rank.engine->step();
    });
    EXPECT_THAT(message, HasSubstr("reduced"));
  });
}

TEST(AccumulateFrozen, AGradientOfAFrozenParameterIsThrownOnAll) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
    run_ranks(3, [strategy](const std::shared_ptr<ProcessGroup>& world) {
      torch::nn::Sequential model(torch::nn::Linear(5, 7), torch::nn::Linear(7, 3));
      model->ptr<torch::nn::LinearImpl>(1)->bias.set_requires_grad(false);
      const auto engine = parallelize(model.ptr(), adamw(), {.strategy = strategy}, world);
      Given gradients = {{"0.bias", at::ones({7})}};
      if (world->rank() == 1) gradients.push_back({"1.bias", at::ones({3})});
      EXPECT_THAT(message_of([&] { engine->accumulate(gradients); }),
                  HasSubstr("[accumulate] rank 1: gradient of '1.bias': is of a frozen parameter"));
      engine->accumulate({{"0.bias", at::ones({7})}});
      EXPECT_EQ(engine->step().used_parameters, 1);
    });
  }
}

TEST(AccumulateScaled, GradientsAreOfAScaledLoss) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    Options options = small_options_of(configuration_of(Strategy::kZero2));
    options.loss_scale = LossScale{.initial = 256.0};
    const OddRank by_loss(world, options);
    const OddRank by_gradient(world, options);
    by_loss.engine->accumulate(
        gradients_of(*by_loss.engine, by_loss.engine->scale(by_loss.loss(0))));
    Given gradients = gradients_of(*by_gradient.engine, by_gradient.loss(0));
    for (NamedTensor& gradient : gradients) {
      gradient.tensor = by_gradient.engine->scale(gradient.tensor);
    }
    by_gradient.engine->accumulate(gradients);
    EXPECT_EQ(by_loss.engine->step().grad_norm, by_gradient.engine->step().grad_norm);
    by_loss.engine->accumulate(gradients_of(*by_loss.engine, by_loss.loss(1)));
    EXPECT_THAT(message_of([&] { by_loss.engine->step(); }), HasSubstr("engine->scale(loss)"));
  });
}

TEST(AccumulateUpdating, ASecondCallBeforeStepIsRefusedOnAllRanks) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    Options options = small_options_of(configuration_of(Strategy::kZero3));
    options.optimizer_in_backward = true;
    const OddRank rank(world, options);
    const Given gradients = gradients_of(*rank.engine, rank.loss(0));
    rank.engine->accumulate(gradients);
    EXPECT_NE(message_of([&] { rank.engine->accumulate(gradients); }), kNothingThrown);
    EXPECT_TRUE(rank.engine->step().committed);
  });
}

// The backward that computed the gradients has mixed the ranks' losses without their weights.
TEST(AccumulateWeighted, IsRefusedBesideASyncBatchNormInTrainingMode) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    const auto net = std::make_shared<NormNet>(world);
    const auto engine = parallelize(net, adamw(), {}, world);
    const Given gradients = {{"norm.weight", at::ones({4})}, {"norm.bias", at::ones({4})}};
    if (world->rank() > 0) net->eval();
    EXPECT_THAT(message_of([&] { engine->accumulate(gradients, 2.0); }),
                HasSubstr("[accumulate] rank 0: backward: got a weight on cpu in a model with the "
                          "SyncBatchNorm 'norm', which cannot know there how the ranks' losses"));
    net->eval();
    engine->accumulate(gradients, 1.0 + world->rank());
    EXPECT_TRUE(engine->step().committed);
  });
}

/// The sum of the squares overflows. How many ranks' parts do depends on the configuration, but no
/// configuration applies such a step.
TEST(AccumulateTooLarge, ANormThatIsNotFiniteIsRefusedUnderEveryConfiguration) {
  for (const int size : {1, 2, 3}) {
    for (const Configuration& configuration : spanning_configurations(size)) {
      run_ranks(size, [&configuration](const std::shared_ptr<ProcessGroup>& world) {
        torch::nn::Sequential model(torch::nn::Linear(8, 8), torch::nn::Linear(8, 8));
        model->to(torch::kDouble);
        const auto engine =
            parallelize(model, torch::optim::SGDOptions(1e-150), options_of(configuration), world);
        const auto norm_of = [&engine](double large) {
          at::Tensor weight = at::zeros({8, 8}, at::kDouble);
          weight[0][0] = large;
          engine->accumulate({{"0.weight", weight}, {"1.weight", weight}});
          return engine->step().grad_norm;
        };
        EXPECT_DOUBLE_EQ(norm_of(0.5e154), std::sqrt(0.5) * 1e154) << "the control";
        EXPECT_THAT(message_of([&] { norm_of(1.2e154); }), HasSubstr("non-finite gradient"))
            << configuration;
      });
    }
  }
}

}  // namespace
}  // namespace tessera::internal::testing
