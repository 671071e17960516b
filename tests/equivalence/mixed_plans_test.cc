#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/lion_options.h"
#include "tessera/parallelize.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

// Several algorithms in one plan: all strategies train to ddp's bits, and like one process with a
// LibTorch optimizer for each group.

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

const std::vector<std::string> kMixedModels = {"OddMlp", "TiedMlp", "UnusedEverywhere", "Conv"};

AdamWOptions adamw() { return AdamWOptions(0.02).eps(1e-6).weight_decay(0.1); }
SGDOptions plain_sgd() { return SGDOptions(0.05).momentum(0.9).weight_decay(0.01); }

bool is_vector(std::string_view, const at::Tensor& parameter) { return parameter.dim() <= 1; }

OptimizerPlan adamw_and_sgd(const torch::nn::Module&) {
  return {adamw(), {{"vectors", &is_vector, plain_sgd()}}};
}

OptimizerPlan three(const torch::nn::Module&) {
  return {adamw(),
          {{"vectors", &is_vector, plain_sgd()},
           {"narrow", [](std::string_view, const at::Tensor& of) { return of.size(0) % 2 == 1; },
            LionOptions(1e-3).weight_decay(0.2)}}};
}

bool selects_something(const torch::nn::Module& model, const OptimizerGroup& group) {
  for (const auto& entry : model.named_parameters()) {
    if (entry.value().requires_grad() && group.selects(entry.key(), entry.value())) return true;
  }
  return false;
}

/// `plan` without the groups that select none of the model's parameters.
template <OptimizerPlan (*kPlan)(const torch::nn::Module&)>
OptimizerPlan fitting(const torch::nn::Module& model) {
  OptimizerPlan plan = kPlan(model);
  std::erase_if(plan.groups,
                [&](const OptimizerGroup& group) { return !selects_something(model, group); });
  return plan;
}

Outcome train_with(OptimizerPlan (*plan)(const torch::nn::Module&), const std::string& model,
                   const Configuration& configuration, int world,
                   at::ScalarType dtype = at::kFloat) {
  return train_on_threads(subject(model), dtype, configuration, schedule_called("ThriceClipped"),
                          world, {.plan = plan});
}

/// torch::optim::AdamW and torch::optim::SGD in one process on the batches of all ranks.
std::map<std::string, at::Tensor> plain_loop(const Subject& subject, int size) {
  return train_plainly(subject, at::kDouble, schedule_called("ThriceClipped"), size,
                       [](const std::vector<at::Tensor>& parameters) -> PlainStep {
                         std::vector<at::Tensor> vectors;
                         std::vector<at::Tensor> others;
                         for (const at::Tensor& parameter : parameters) {
                           (is_vector("", parameter) ? vectors : others).push_back(parameter);
                         }
                         return
                             [by_adamw = std::make_shared<torch::optim::AdamW>(others, adamw()),
                              by_sgd = std::make_shared<torch::optim::SGD>(vectors, plain_sgd())] {
                               by_adamw->step();
                               by_sgd->step();
                             };
                       });
}

TEST(MixedPlans, AllStrategiesTrainToTheBitsOfDdp) {
  for (const int world : {2, 3, 4}) {
    for (const std::string& model : kMixedModels) {
      const auto plan = &fitting<&three>;
      const Outcome expected = train_with(plan, model, configuration_of(Strategy::kDdp), world);
      for (const Configuration& configuration : spanning_configurations(world)) {
        if (!configuration.keeps_bits()) continue;
        EXPECT_EQ(bit_differences(train_with(plan, model, configuration, world), expected), "")
            << configuration << " " << model << " at " << world;
      }
    }
  }
}

TEST(MixedPlans, TrainLikeTorchsOptimizersOnAllBatches) {
  for (const int world : {1, 2, 3}) {
    for (const std::string& model : kMixedModels) {
      const auto expected = plain_loop(subject(model), world);
      for (const Configuration& configuration : named_configurations()) {
        const Outcome got =
            train_with(&fitting<&adamw_and_sgd>, model, configuration, world, at::kDouble);
        EXPECT_EQ(differences(got.parameters, expected, subject(model).tolerance), "")
            << configuration << " " << model << " at " << world;
      }
    }
  }
}

TEST(MixedPlans, NegativeControls) {
  const Configuration zero2 = configuration_of(Strategy::kZero2);
  const Outcome mixed = train_with(&adamw_and_sgd, "OddMlp", zero2, 2, at::kDouble);
  const auto alone = [](const torch::nn::Module&) -> OptimizerPlan { return adamw(); };
  const Outcome adamw_alone = train_with(+alone, "OddMlp", zero2, 2, at::kDouble);
  EXPECT_NE(bit_differences(adamw_alone, mixed), "");
  const auto expected = plain_loop(subject("OddMlp"), 2);
  EXPECT_EQ(differences(mixed.parameters, expected, subject("OddMlp").tolerance), "");
  EXPECT_NE(differences(adamw_alone.parameters, expected, subject("OddMlp").tolerance), "");
}

/// This holds for a group with its own algorithm as for the defaults.
TEST(MixedPlans, AHyperParameterChangedOnOneRankIsNamedOnAllOfThem) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    const bool is_odd_one = world->rank() == 1;
    const Subject& model = subject("OddMlp");
    const Schedule schedule{.name = ""};
    const std::shared_ptr<Net> net = prepare(model.make(), at::kFloat, 42);
    const auto engine =
        parallelize(*net, adamw_and_sgd(*net), {.strategy = Strategy::kZero2}, world);
    const Moment moment{.step = 0, .rank = world->rank()};
    const Batch batch = batch_of(model, at::kFloat, schedule, moment, 0);
    loss_of(*net, batch, moment, schedule).backward();
    if (is_odd_one) {
      static_cast<SGDOptions&>(engine->optimizer().param_groups()[1].options()).momentum(0.8);
    }
    EXPECT_THAT([&] { engine->step(); },
                ThrowsMessage<c10::Error>(HasSubstr("group 'vectors': momentum")));
  });
}

TEST(MixedPlans, AnAlgorithmThatDiffersOnOneRankIsNamedOnAllOfThem) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> world) {
    const std::shared_ptr<Net> net = prepare(subject("OddMlp").make(), at::kFloat, 42);
    OptimizerPlan plan = adamw_and_sgd(*net);
    if (world->rank() == 1) plan.groups[0].options = LionOptions();
    EXPECT_THAT(
        [&] { parallelize(*net, plan, {.strategy = Strategy::kZero3}, world); },
        ThrowsMessage<c10::Error>(AllOf(HasSubstr("group 'vectors': SGD lr 0.05 momentum 0.9"),
                                        HasSubstr("group 'vectors': Lion lr 0.0001"))));
  });
}

}  // namespace
}  // namespace tessera::internal::testing
