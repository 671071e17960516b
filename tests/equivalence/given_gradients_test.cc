#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/given_gradients.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/training.h"

// Gradients that a user computes with autograd::grad() and gives to Engine::accumulate() have the
// same effect, to the bit, as loss.backward(), under every configuration.

namespace tessera::internal::testing {
namespace {

void give_gradients(Engine& engine, const torch::nn::Module&, const at::Tensor& loss) {
  engine.accumulate(gradients_of(engine, loss));
}

/// Alternates with backward(). Every rank of a run has its own thread.
void give_every_other(Engine& engine, const torch::nn::Module& model, const at::Tensor& loss) {
  thread_local int calls = 0;
  if (calls++ % 2 == 0) return give_gradients(engine, model, loss);
  loss.backward();
}

/// Models whose backward autograd::grad() can run, so none with re-entrant checkpoints.
const std::vector<std::string> kGivenModels = {
    "OddMlp",           "TinyAndScalar", "TiedMlp",     "FrozenLayers",
    "UnusedEverywhere", "Branches",      "CalledTwice", "Conv",
    "ChannelsLast",     "Embedding",     "MixedDtypes", "Lstm",
    "SparseEmbedding",  "Gapped",        "Blocks",      "EmptyParameter"};

class GivenGradients : public ::testing::TestWithParam<int> {};

TEST_P(GivenGradients, TrainToTheBitsOfBackwardUnderEveryConfiguration) {
  size_t turn = 0;
  for (const Configuration& configuration : spanning_configurations(GetParam())) {
    // Each configuration trains half of the models; each model takes all schedules in turn.
    // Gradients are given each time or every second time.
    for (size_t i = turn % 2; i < kGivenModels.size(); i += 2, ++turn) {
      const Subject& model = subject(kGivenModels[i]);
      const Schedule& schedule = schedules()[turn % schedules().size()];
      const auto backward = turn / 2 % 2 == 0 ? &give_gradients : &give_every_other;
      const Outcome got = train_on_threads(model, at::kFloat, configuration, schedule, GetParam(),
                                           {.backward = backward});
      EXPECT_EQ(bit_differences(
                    got, expected_outcome(model, at::kFloat, configuration, schedule, GetParam())),
                "")
          << configuration << " " << model << " " << schedule;
    }
    ++turn;
  }
}

TEST_P(GivenGradients, TrainToTheBitsOfBackwardInOtherPrecisionsAndScaled) {
  for (const Strategy strategy :
       {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kZero3}) {
    Configuration configuration = configuration_of(strategy);
    configuration.precision.parameters = at::kBFloat16;
    const auto train_here = [&](TrainOptions options) {
      options.adjust = [](Options& changed) {
        changed.loss_scale.emplace();
        changed.gradient_divide_factor = 1.5;
      };
      return train_on_threads(subject("OddMlp"), at::kFloat, configuration,
                              schedule_called("ThriceClipped"), GetParam(), options);
    };
    EXPECT_EQ(bit_differences(train_here({.backward = &give_gradients}), train_here({})), "")
        << configuration;
  }
}

TEST_P(GivenGradients, UpdateInBackwardAsBackwardDoes) {
  for (const Strategy strategy : {Strategy::kZero2, Strategy::kZero3}) {
    for (const char* model : {"OddMlp", "UnusedEverywhere", "TiedMlp"}) {
      Configuration configuration = configuration_of(strategy);
      configuration.optimizer_in_backward = true;
      const auto train_here = [&](const TrainOptions& options) {
        return train_on_threads(subject(model), at::kFloat, configuration, schedule_called("Once"),
                                GetParam(), options);
      };
      EXPECT_EQ(bit_differences(train_here({.backward = &give_gradients}), train_here({})), "")
          << configuration << " " << model;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, GivenGradients, ::testing::ValuesIn(spanning_worlds()));

/// The negative control: a missing or doubled gradient changes the result.
TEST(GivenGradientsNegativeControl, OtherGradientsAreNoticed) {
  const auto train_here = [](const TrainOptions& options) {
    return train_on_threads(subject("OddMlp"), at::kFloat, configuration_of(Strategy::kZero2),
                            schedule_called("Once"), 2, options);
  };
  const Outcome right = train_here({});
  EXPECT_EQ(bit_differences(train_here({.backward = &give_gradients}), right), "");
  const auto without_last = [](Engine& engine, const torch::nn::Module&, const at::Tensor& loss) {
    auto gradients = gradients_of(engine, loss);
    gradients.pop_back();
    engine.accumulate(gradients);
  };
  EXPECT_NE(bit_differences(train_here({.backward = without_last}), right), "");
  const auto doubled = [](Engine& engine, const torch::nn::Module&, const at::Tensor& loss) {
    auto gradients = gradients_of(engine, loss);
    gradients[0].tensor = gradients[0].tensor * 2;
    engine.accumulate(gradients);
  };
  EXPECT_NE(bit_differences(train_here({.backward = doubled}), right), "");
}

}  // namespace
}  // namespace tessera::internal::testing
