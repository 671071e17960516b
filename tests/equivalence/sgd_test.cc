#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/support/training.h"

// All strategies train SGD to ddp's bits, and ddp trains like torch::optim::SGD on the concatenated
// batch.

namespace tessera::internal::testing {
namespace {

using torch::optim::SGDOptions;

constexpr int kWorlds[] = {2, 3};
const std::vector<std::string> kModels = {"OddMlp", "TiedMlp", "UnusedEverywhere", "Conv"};

SGDOptions sgd() { return SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.01); }
SGDOptions dampened() { return SGDOptions(0.05).momentum(0.8).dampening(0.25); }

TrainOptions with(const SGDOptions& options) {
  return {.plan = [options](const torch::nn::Module&) { return OptimizerPlan(options); }};
}

Outcome train_with(const SGDOptions& options, const std::string& model,
                   const Configuration& configuration, int world,
                   at::ScalarType dtype = at::kFloat) {
  return train_on_threads(subject(model), dtype, configuration, schedule_called("ThriceClipped"),
                          world, with(options));
}

/// torch::optim::SGD in one process on the batches of all ranks.
std::map<std::string, at::Tensor> plain_loop(const SGDOptions& options, const Subject& subject,
                                             const Schedule& schedule, int size) {
  return train_plainly(subject, at::kDouble, schedule, size,
                       [&](const std::vector<at::Tensor>& parameters) -> PlainStep {
                         return [by_sgd = std::make_shared<torch::optim::SGD>(
                                     parameters, options)] { by_sgd->step(); };
                       });
}

TEST(SgdEquivalence, AllStrategiesTrainToTheBitsOfDdp) {
  for (const int world : kWorlds) {
    for (const std::string& model : kModels) {
      for (const SGDOptions& options : {sgd(), dampened()}) {
        const Outcome expected =
            train_with(options, model, configuration_of(Strategy::kDdp), world);
        for (const Configuration& configuration : named_and_apart_configurations()) {
          EXPECT_EQ(bit_differences(train_with(options, model, configuration, world), expected), "")
              << configuration << " " << model << " at " << world;
        }
      }
    }
  }
}

TEST(SgdEquivalence, TrainsLikeTorchsSgdOnAllBatches) {
  for (const int world : kWorlds) {
    for (const std::string& model : kModels) {
      for (const SGDOptions& options : {sgd(), dampened()}) {
        for (const Configuration& configuration : named_configurations()) {
          const Outcome got = train_with(options, model, configuration, world, at::kDouble);
          EXPECT_EQ(differences(got.parameters,
                                plain_loop(options, subject(model),
                                           schedule_called("ThriceClipped"), world),
                                subject(model).tolerance),
                    "")
              << configuration << " " << model << " at " << world;
        }
      }
    }
  }
}

TEST(SgdEquivalence, NegativeControls) {
  const Configuration zero2 = configuration_of(Strategy::kZero2);
  const Outcome right = train_with(sgd(), "OddMlp", zero2, 2);
  EXPECT_EQ(bit_differences(train_with(sgd(), "OddMlp", zero2, 2), right), "");
  EXPECT_NE(bit_differences(train_with(sgd().momentum(0.9001), "OddMlp", zero2, 2), right), "");
  EXPECT_NE(bit_differences(train_with(sgd().nesterov(false), "OddMlp", zero2, 2), right), "");
  // An update that forgets its momentum after each step.
  const auto one_process = plain_loop(sgd().momentum(0).nesterov(false), subject("OddMlp"),
                                      schedule_called("ThriceClipped"), 2);
  const Outcome fp64 = train_with(sgd(), "OddMlp", zero2, 2, at::kDouble);
  EXPECT_NE(differences(fp64.parameters, one_process, subject("OddMlp").tolerance), "");
}

}  // namespace
}  // namespace tessera::internal::testing
