#include "tessera/optimizer_plan.h"

#include <cmath>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/optim/algorithm/algorithm.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using torch::optim::AdamWOptions;

std::function<bool(std::string_view)> ends_with(const std::string& end) {
  return [end](std::string_view name) { return name.ends_with(end); };
}

ParameterTable example_table() {
  return ParameterTable({{"fc1.weight", torch::zeros({2, 3}).requires_grad_()},
                         {"fc1.bias", torch::zeros({2}).requires_grad_()},
                         {"frozen.bias", torch::zeros({2})},
                         {"fc2.weight", torch::zeros({2, 2}).requires_grad_()}});
}

std::string refusal_of(const OptimizerPlan& plan) {
  const auto assigned = plan.assign(example_table());
  return assigned.ok() ? "accepted" : std::string(assigned.status().message());
}

TEST(OptimizerPlan, ConvertsFromTorchsOptions) {
  const OptimizerPlan plan = AdamWOptions(3e-4).weight_decay(0.1);
  EXPECT_EQ(plan.defaults.as<AdamWOptions>().lr(), 3e-4);
  EXPECT_EQ(plan.assign(example_table()).value(), (std::vector<size_t>{0, 0, 0, 0}));
}

TEST(OptimizerPlan, TheFirstGroupThatSelectsAParameterHasIt) {
  const OptimizerPlan plan(
      AdamWOptions(1e-3),
      {{"no decay", ends_with("bias"), AdamWOptions(1e-3).weight_decay(0)},
       {"first layer", [](std::string_view name) { return name.starts_with("fc1"); },
        AdamWOptions(1e-4)}});
  // The frozen bias is assigned too, because it may be trained later.
  EXPECT_EQ(plan.assign(example_table()).value(), (std::vector<size_t>{2, 1, 1, 0}));
}

TEST(OptimizerPlan, AllProblemsAreListedAtOnce) {
  const OptimizerPlan plan(
      AdamWOptions(-1.0).betas({1.0, -0.5}),
      {{"adapters", ends_with("adapter"), AdamWOptions(1e-3).eps(-1e-8)},
       {"frozen", [](std::string_view name) { return name.starts_with("frozen"); },
        AdamWOptions(1e-3)},
       {"nothing", nullptr, AdamWOptions(1e-3).weight_decay(-0.1)},
       {"new", ends_with("weight"), AdamWOptions(1e-3)}});
  EXPECT_THAT(refusal_of(plan),
              AllOf(HasSubstr("[optim] defaults: lr: got -1, expected a finite number, at least 0"),
                    HasSubstr("[optim] defaults: beta1: got 1, expected 0 <= beta1 < 1"),
                    HasSubstr("[optim] defaults: beta2: got -0.5, expected 0 <= beta2 < 1"),
                    HasSubstr("[optim] group 'adapters': eps: got -1e-08"),
                    HasSubstr("[optim] group 'adapters': got no parameter, expected at least one"),
                    Not(HasSubstr("group 'frozen'")),  // which has no trainable parameter yet
                    HasSubstr("[optim] group 'nothing': weight_decay: got -0.1"),
                    HasSubstr("[optim] group 'nothing': got no predicate"),
                    Not(HasSubstr("group 'new': got no"))));
  EXPECT_EQ(plan.assign(example_table()).status().code(), absl::StatusCode::kInvalidArgument);
}

struct NobodysOptions : torch::optim::OptimizerCloneableOptions<NobodysOptions> {};

TEST(OptimizerPlan, OptionsOfNoAlgorithmAreRefusedByTheirType) {
  EXPECT_THAT(refusal_of(NobodysOptions()),
              AllOf(HasSubstr("[optim] defaults: got "), HasSubstr("NobodysOptions, expected "),
                    HasSubstr("AdamWOptions")));
  EXPECT_THROW(OptimizerPlan(NobodysOptions()).algorithm(), c10::Error);
  EXPECT_EQ(OptimizerPlan(AdamWOptions()).algorithm().name, "AdamW");
}

TEST(OptimizerPlan, GroupsMayHaveAlgorithmsOfTheirOwn) {
  OptimizerPlan plan(AdamWOptions(1e-3), {{"biases", ends_with("bias"), NobodysOptions()}});
  EXPECT_THAT(refusal_of(plan), AllOf(HasSubstr("[optim] group 'biases': got "),
                                      HasSubstr("NobodysOptions, expected AdamWOptions, ")));
  plan.groups[0].options = {};
  EXPECT_THAT(refusal_of(plan),
              HasSubstr("[optim] group 'biases': got no options, expected AdamWOptions"));
  plan.groups[0].options = AdamWOptions(1e-3);
  EXPECT_EQ(refusal_of(plan), "accepted");
  plan.groups[0].options = torch::optim::SGDOptions(0.5);
  EXPECT_EQ(refusal_of(plan), "accepted");
  EXPECT_EQ(plan.algorithm(0).name, "AdamW");
  EXPECT_EQ(plan.algorithm(1).name, "SGD");
  EXPECT_EQ(plan.lines().back(),
            "optimizer group 'biases': SGD lr 0.5 momentum 0 dampening 0 weight_decay 0");
  plan.groups[0].options = torch::optim::SGDOptions(-1);
  EXPECT_THAT(refusal_of(plan), HasSubstr("[optim] group 'biases': lr: got -1"));
}

bool is_matrix(std::string_view, const at::Tensor& parameter) { return parameter.dim() == 2; }

TEST(OptimizerPlan, PredicatesSeeTheTensorToo) {
  const OptimizerPlan plan(
      AdamWOptions(1e-3),
      {{"small",
        [](std::string_view, const at::Tensor& parameter) { return parameter.numel() == 4; },
        AdamWOptions(1e-3)},
       {"matrices", &is_matrix, AdamWOptions(1e-3)}});
  EXPECT_EQ(plan.assign(example_table()).value(), (std::vector<size_t>{2, 0, 0, 1}));
  const ParameterPredicate by_function = std::function<bool(std::string_view)>(ends_with("t"));
  EXPECT_TRUE(by_function("weight", torch::zeros({})));
  EXPECT_FALSE(by_function("bias", torch::zeros({})));
  EXPECT_FALSE(static_cast<bool>(ParameterPredicate(std::function<bool(std::string_view)>())));
  EXPECT_FALSE(static_cast<bool>(ParameterPredicate()));
}

TEST(OptimizerPlan, NanAndInfinityAreOutOfRange) {
  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_THAT(refusal_of(AdamWOptions(nan)), HasSubstr("defaults: lr: got nan"));
  EXPECT_THAT(refusal_of(AdamWOptions(infinity)), HasSubstr("defaults: lr: got inf"));
  EXPECT_THAT(refusal_of(AdamWOptions(1e-3).betas({nan, 0.9})), HasSubstr("beta1: got nan"));
  EXPECT_THAT(refusal_of(AdamWOptions(1e-3).weight_decay(nan)), HasSubstr("weight_decay: got nan"));
}

TEST(OptimizerPlan, BoundariesOfTheRangesAreAllowed) {
  EXPECT_EQ(refusal_of(AdamWOptions(0.0).betas({0.0, 0.0}).eps(0.0).weight_decay(0.0)), "accepted");
}

TEST(OptimizerPlan, LinesTellApartWhatRanksMustAgreeOn) {
  const OptimizerPlan plan(AdamWOptions(3e-4),
                           {{"no decay", ends_with("bias"), AdamWOptions(0.1).weight_decay(0)}});
  EXPECT_THAT(plan.lines(), ::testing::ElementsAre(
                                "optimizer defaults: AdamW lr 0.0003 beta1 0.9 beta2 0.999 eps "
                                "1e-08 weight_decay 0.01",
                                "optimizer group 'no decay': AdamW lr 0.1 beta1 0.9 beta2 0.999 "
                                "eps 1e-08 weight_decay 0"));
  const auto line = [](const AdamWOptions& options) {
    return OptimizerPlan(options).lines().front();
  };
  const std::string base = line(AdamWOptions(0.1));
  EXPECT_EQ(base, line(AdamWOptions(0.1)));
  EXPECT_NE(base, line(AdamWOptions(std::nextafter(0.1, 1.0)))) << "the last digit counts";
  EXPECT_NE(base, line(AdamWOptions(0.1).betas({0.8, 0.999})));
  EXPECT_NE(base, line(AdamWOptions(0.1).betas({0.9, 0.99})));
  EXPECT_NE(base, line(AdamWOptions(0.1).eps(1e-6)));
  EXPECT_NE(base, line(AdamWOptions(0.1).weight_decay(0.1)));
  EXPECT_NE(base, line(AdamWOptions(0.1).amsgrad(true)));
}

TEST(OptimizerPlanNegativeControl, AGoodPlanIsAccepted) {
  EXPECT_EQ(
      refusal_of(OptimizerPlan(AdamWOptions(1e-3), {{"b", ends_with("bias"), AdamWOptions(1e-3)}})),
      "accepted");
}

}  // namespace
}  // namespace tessera::internal
