#include "tessera/optim/algorithms/sgd.h"

#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/optim/algorithms/algorithms.h"
#include "tessera/tests/optim/torch_twin.h"

namespace tessera::internal {
namespace {

using testing::have_same_bits;
using torch::optim::SGDOptions;

struct Variant {
  std::string name;
  SGDOptions options;
};

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = {
      {"Plain", SGDOptions(0.03)},
      {"Decay", SGDOptions(0.03).weight_decay(0.1)},
      {"Momentum", SGDOptions(0.03).momentum(0.9)},
      {"Dampened", SGDOptions(0.03).momentum(0.9).dampening(0.3)},
      {"Nesterov", SGDOptions(0.03).momentum(0.9).nesterov(true)},
      {"NesterovDecay", SGDOptions(0.03).momentum(0.8).nesterov(true).weight_decay(0.05)},
      {"All", SGDOptions(0.03).momentum(0.7).dampening(0.2).weight_decay(0.05)}};
  return all;
}

std::set<std::string> sgd_differing(
    const SGDOptions& options, const SGDOptions& reference_options, at::ScalarType dtype,
    int slices, int steps,
    const std::function<void(int step, SGDOptions&)>& edit = [](int, SGDOptions&) {}) {
  return differing<torch::optim::SGD, SGDOptions>(options, reference_options, dtype, slices, steps,
                                                  /*ulps=*/0, edit);
}

TEST(Sgd, HasTheBitsOfTorchsSgdHoweverItIsCut) {
  for (const Variant& variant : variants()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      for (const int slices : {1, 2, 3, 5}) {
        EXPECT_THAT(sgd_differing(variant.options, variant.options, dtype, slices, 12),
                    ::testing::IsEmpty())
            << variant.name << " " << dtype << " " << slices;
      }
    }
  }
}

TEST(Sgd, MomentumMayComeAndGo) {
  // It has a momentum buffer only if the options have momentum when the engine is made.
  const SGDOptions options = SGDOptions(0.03).dampening(0.3).momentum(0.7);
  const auto come_and_go = [](int step, SGDOptions& of) {
    of.momentum(step < 2 || step == 5 ? 0.0 : 0.7);
  };
  EXPECT_THAT(sgd_differing(options, options, at::kDouble, 2, 9, come_and_go),
              ::testing::IsEmpty());
}

TEST(Sgd, NegativeControlsOfTheComparison) {
  const SGDOptions all = variants().back().options;
  const auto differs = [&](const SGDOptions& other) {
    return !sgd_differing(all, other, at::kFloat, 2, 12).empty();
  };
  EXPECT_FALSE(differs(all));
  EXPECT_TRUE(differs(SGDOptions(all).momentum(0.70001)));
  EXPECT_TRUE(differs(SGDOptions(all).dampening(0.20001)));
  EXPECT_TRUE(differs(SGDOptions(all).weight_decay(0.05001)));
  EXPECT_TRUE(differs(SGDOptions(all).lr(0.0300001)));
  EXPECT_TRUE(differs(SGDOptions(all).nesterov(true).dampening(0)));
}

TEST(Sgd, TheGradientScaleMultipliesTheGradientFirst) {
  const SGDOptions options = variants().back().options;
  ShardedModel scaled(twin_parameters(at::kDouble), options, 2);
  ShardedModel plain(twin_parameters(at::kDouble), options, 2);
  const std::vector<NamedTensor> shapes = twin_parameters(at::kDouble);
  for (int step = 0; step < 4; ++step) {
    std::vector<at::Tensor> gradients = twin_gradients(shapes, step);
    scaled.update(gradients, 0.25);
    for (at::Tensor& gradient : gradients) {
      if (gradient.defined()) gradient = gradient * 0.25;
    }
    plain.update(gradients);
  }
  EXPECT_TRUE(have_same_bits(scaled.flat(), plain.flat()));
}

TEST(Sgd, IsChosenByItsOptionsAndSaysWhatIsOutOfRange) {
  const Algorithm* sgd = algorithm_of(SGDOptions(0.5));
  ASSERT_EQ(sgd, &sgd_algorithm());
  EXPECT_EQ(known_options(),
            "AdamWOptions, AdamOptions, SGDOptions, LionOptions, AdagradOptions, RMSpropOptions, "
            "MuonOptions, LambOptions, AdamW8bitOptions or Lion8bitOptions");
  EXPECT_EQ(sgd->line_of(SGDOptions(0.5).momentum(0.25).nesterov(true)),
            "SGD lr 0.5 momentum 0.25 dampening 0 weight_decay 0 nesterov");
  EXPECT_THAT(sgd->problems_of("defaults", SGDOptions(-1).momentum(std::nan(""))),
              ::testing::ElementsAre(
                  "[optim] defaults: lr: got -1, expected a finite number, at least 0",
                  "[optim] defaults: momentum: got nan, expected a finite number, at least 0"));
  constexpr const char* kConflict =
      "[optim] defaults: nesterov: got true, expected false without momentum or with dampening";
  EXPECT_THAT(sgd->problems_of("defaults", SGDOptions(1).nesterov(true)),
              ::testing::ElementsAre(kConflict));
  EXPECT_THAT(
      sgd->problems_of("defaults", SGDOptions(1).nesterov(true).momentum(0.9).dampening(0.1)),
      ::testing::ElementsAre(kConflict));
  EXPECT_THAT(sgd->problems_of("defaults", SGDOptions(1).nesterov(true).momentum(0.9)),
              ::testing::IsEmpty());
  SGDOptions options(1);
  for (const HyperParameterField& field : sgd->hyper_parameters) {
    field.write(options, field.is_switch ? 1.0 : 0.125);
  }
  EXPECT_TRUE(
      options ==
      SGDOptions(0.125).momentum(0.125).dampening(0.125).weight_decay(0.125).nesterov(true));
  ShardedModel model(twin_parameters(at::kFloat), SGDOptions(0.1).momentum(0.5), 1);
  EXPECT_EQ(model.optimizer(0).state_bytes(), model.flat().numel() * 4);
}

}  // namespace
}  // namespace tessera::internal
