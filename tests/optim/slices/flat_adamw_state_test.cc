#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/optim/slices/flat_optimizer.h"
#include "tessera/tests/optim/sharded_model.h"

// FlatAdamw's part of a StateDict: moments, step counts, hyper-parameters.
namespace tessera::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::optim::AdamWOptions;

std::vector<NamedTensor> parameters() {
  return {{"w", torch::ones({70}, torch::kDouble).requires_grad_()},
          {"f", torch::ones({3}, torch::kDouble)},
          {"b", torch::ones({5}, torch::kDouble).requires_grad_()},
          {"s", torch::ones({}, torch::kDouble).requires_grad_()}};
}

OptimizerPlan plan() {
  const auto named = [](const char* name) {
    return [name](std::string_view parameter) { return parameter == name; };
  };
  return OptimizerPlan(AdamWOptions(0.1), {{"small", named("b"), AdamWOptions(0.2)},
                                           {"small", named("s"), AdamWOptions(0.3)}});
}

std::vector<at::Tensor> gradients(double value) {
  std::vector<at::Tensor> all;
  for (const NamedTensor& parameter : parameters()) {
    all.push_back(parameter.tensor.requires_grad()
                      ? torch::full_like(parameter.tensor.detach(), value)
                      : at::Tensor());
  }
  return all;
}

std::vector<double> values_of(const FlatOptimizer& optimizer) {
  std::vector<double> values;
  for (const HyperParameter& number : optimizer.groups().hyper_parameters())
    values.push_back(number.value);
  return values;
}

TEST(FlatAdamwState, GivesItsMomentsByShard) {
  ShardedModel model(parameters(), plan(), 3);
  model.update(gradients(0.5));
  EXPECT_THAT(model.optimizer(0).states(), ElementsAre(Field(&ElementState::name, "exp_avg"),
                                                       Field(&ElementState::name, "exp_avg_sq")));
  for (int slice = 0; slice < 3; ++slice) {
    const FlatOptimizer& optimizer = model.optimizer(slice);
    EXPECT_EQ(optimizer.state(0, 0).numel(), model.flat().numel() / 3);
    EXPECT_EQ(optimizer.state(0, 1).scalar_type(), torch::kDouble);
  }
  EXPECT_DOUBLE_EQ(model.optimizer(0).state(0, 0)[0].item<double>(), 0.05);
  EXPECT_DOUBLE_EQ(model.optimizer(0).state(0, 1)[0].item<double>(), 0.25 * 0.001);
}

TEST(FlatAdamwState, CountsStepsPerParameter) {
  ShardedModel model(parameters(), plan(), 2);
  std::vector<at::Tensor> some = gradients(1.0);
  model.update(some);
  some[2] = at::Tensor();
  model.update(some);
  FlatOptimizer& optimizer = model.optimizer(1);
  EXPECT_EQ(optimizer.step_counts()[0], 2);
  EXPECT_EQ(optimizer.step_counts()[1], 0) << "frozen";
  EXPECT_EQ(optimizer.step_counts()[2], 1) << "unused once";
}

TEST(FlatAdamwState, AnotherOptimizerGoesOnFromIt) {
  ShardedModel whole(parameters(), plan(), 2);
  ShardedModel first(parameters(), plan(), 2);
  for (int step = 0; step < 4; ++step) whole.update(gradients(step + 0.5));
  for (int step = 0; step < 2; ++step) first.update(gradients(step + 0.5));
  ShardedModel second(parameters(), plan(), 2);
  second.flat().copy_(first.flat());
  for (int slice = 0; slice < 2; ++slice) {
    FlatOptimizer& to = second.optimizer(slice);
    for (size_t name : {0u, 1u}) to.state(0, name).copy_(first.optimizer(slice).state(0, name));
    to.set_step_counts(first.optimizer(slice).step_counts());
  }
  for (int step = 2; step < 4; ++step) second.update(gradients(step + 0.5));
  EXPECT_TRUE(torch::equal(second.flat(), whole.flat()));

  // Negative control: a lost count is noticed.
  std::vector<int64_t> counts = first.optimizer(0).step_counts();
  counts[0] = 0;
  first.optimizer(0).set_step_counts(counts);
  for (int step = 2; step < 4; ++step) first.update(gradients(step + 0.5));
  EXPECT_FALSE(torch::equal(first.flat(), whole.flat()));
}

TEST(FlatAdamwState, NamesItsHyperParametersByGroup) {
  ShardedModel model(parameters(), plan(), 1);
  std::vector<std::string> names;
  for (const HyperParameter& number : model.optimizer(0).groups().hyper_parameters()) {
    names.push_back(number.group + "." + number.name);
  }
  ASSERT_EQ(names.size(), 15u);
  EXPECT_EQ(names[0], "defaults.lr");
  EXPECT_EQ(names[4], "defaults.weight_decay");
  EXPECT_EQ(names[5], "small.lr");
  EXPECT_EQ(names[10], "small #2.lr") << "two groups of one name stay apart";
}

TEST(FlatAdamwState, TakesHyperParametersBack) {
  ShardedModel model(parameters(), plan(), 1);
  FlatOptimizer& optimizer = model.optimizer(0);
  std::vector<double> values = {0.5, 0.6, 0.7, 1e-3, 0.1};
  values.insert(values.end(), {0.4, 0.5, 0.6, 1e-4, 0.2});
  values.insert(values.end(), {0.3, 0.4, 0.5, 1e-5, 0.3});
  EXPECT_THAT(optimizer.groups().problems_of(values), IsEmpty());
  optimizer.param_groups()[1].options().set_lr(-7);  // loading corrects it
  EXPECT_THAT(optimizer.groups().problem(), HasSubstr("lr: got -7"));
  optimizer.groups().set_hyper_parameters(values);
  EXPECT_EQ(values_of(optimizer), values);
  EXPECT_EQ(optimizer.groups().problem(), "");
}

TEST(FlatAdamwState, SaysWhatForbidsHyperParameters) {
  ShardedModel model(parameters(), plan(), 1);
  FlatOptimizer& optimizer = model.optimizer(0);
  const std::vector<double> before = values_of(optimizer);
  std::vector<double> values = before;
  values[0] = -1;
  values[6] = 1.0;
  EXPECT_THAT(
      optimizer.groups().problems_of(values),
      ElementsAre(HasSubstr("[optim] defaults: lr: got -1, expected a finite number"),
                  HasSubstr("[optim] group 'small': beta1: got 1, expected 0 <= beta1 < 1")));
  EXPECT_THROW(optimizer.groups().set_hyper_parameters(values), c10::Error);
  EXPECT_EQ(values_of(optimizer), before);

  optimizer.param_groups()[2].set_options(std::make_unique<torch::optim::SGDOptions>(0.1));
  EXPECT_THAT(optimizer.groups().problems_of(before),
              ElementsAre(HasSubstr("[optim] group 'small': got options of another type")));
  EXPECT_EQ(values_of(optimizer)[10], 0.0);
}

}  // namespace
}  // namespace tessera::internal
