#include "tessera/optim/slices/flat_optimizer.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/optim/sharded_model.h"

namespace tessera::internal {
namespace {

using torch::optim::AdamWOptions;

const std::vector<std::string> kNames = {"conv.weight", "conv.bias", "fc.weight", "frozen",
                                         "fc.bias",     "empty",     "scale",     "wide.weight"};

bool is_unused(size_t parameter, int step) {
  return (parameter == 2 && step % 3 == 1) || (parameter == 6 && step < 7) || parameter == 4;
}

std::vector<NamedTensor> make_parameters(c10::ScalarType dtype) {
  torch::manual_seed(11);
  const auto random = [&](at::IntArrayRef sizes) {
    return torch::randn(sizes, torch::kDouble).to(dtype);
  };
  const std::vector<at::Tensor> tensors = {
      random({5, 3, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast),
      random({5}),
      random({13, 7}).t(),
      random({9}),
      random({65}),
      random({0, 3}),
      random({}),
      random({37, 29}),
  };
  std::vector<NamedTensor> named;
  for (size_t i = 0; i < tensors.size(); ++i) {
    named.push_back({kNames[i], tensors[i].clone().requires_grad_(kNames[i] != "frozen")});
  }
  return named;
}

std::vector<at::Tensor> make_gradients(const std::vector<NamedTensor>& parameters, int step) {
  torch::manual_seed(100 + step);
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i].tensor;
    const at::Tensor gradient =
        torch::randn(tensor.sizes(), torch::kDouble).to(tensor.scalar_type());
    const bool has_none = !tensor.requires_grad() || is_unused(i, step);
    gradients.push_back(has_none ? at::Tensor() : gradient);
  }
  return gradients;
}

bool is_bias(std::string_view name) { return name.ends_with("bias") || name == "scale"; }

OptimizerPlan example_plan() {
  return OptimizerPlan(
      AdamWOptions(1e-2).weight_decay(0.1),
      {{"no decay", is_bias, AdamWOptions(3e-3).weight_decay(0.0).betas({0.8, 0.99}).eps(1e-6)}});
}

/// torch::optim::AdamW over the same parameters and groups, step by step.
class TorchReference {
 public:
  TorchReference(std::vector<NamedTensor> parameters, const OptimizerPlan& plan)
      : parameters_(std::move(parameters)) {
    std::vector<std::vector<at::Tensor>> groups(2);
    for (const NamedTensor& parameter : parameters_) {
      if (parameter.tensor.requires_grad()) {
        groups[is_bias(parameter.name) ? 1 : 0].push_back(parameter.tensor);
      }
    }
    const std::vector<torch::optim::OptimizerParamGroup> param_groups(groups.begin(), groups.end());
    optimizer_ =
        std::make_unique<torch::optim::AdamW>(param_groups, plan.defaults.as<AdamWOptions>());
    // LibTorch 2.15 merges a group's options with the defaults.
    optimizer_->param_groups()[1].set_options(plan.groups[0].options.clone());
  }

  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  torch::optim::AdamW& optimizer() { return *optimizer_; }

  void update(const std::vector<at::Tensor>& gradients) {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].tensor.mutable_grad() =
          gradients[i].defined() ? gradients[i].clone() : gradients[i];
    }
    optimizer_->step();
  }

 private:
  std::vector<NamedTensor> parameters_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
};

double largest_difference(const std::vector<NamedTensor>& expected, const ParameterTable& table) {
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor& a = expected[i].tensor;
    if (a.numel() == 0) continue;
    // Relative for large elements, absolute for small ones.
    const at::Tensor difference = (a - table[i].tensor).abs() / a.abs().clamp_min(1.0);
    largest = std::max(largest, difference.max().item<double>());
  }
  return largest;
}

class FlatAdamwProperty : public ::testing::TestWithParam<c10::ScalarType> {};

TEST_P(FlatAdamwProperty, FollowsTorchsAdamwOverGroupsUnusedAndFrozenParameters) {
  const double tolerance = GetParam() == c10::kDouble ? 4e-15 : 1e-6;
  for (int slices : {1, 2, 3, 4, 5, 7, 8}) {
    SCOPED_TRACE(slices);
    const OptimizerPlan plan = example_plan();
    TorchReference reference(make_parameters(GetParam()), plan);
    ShardedModel model(make_parameters(GetParam()), plan, slices);
    const std::vector<NamedTensor> before = make_parameters(GetParam());
    for (int step = 0; step < 20; ++step) {
      const auto gradients = make_gradients(before, step);
      reference.update(gradients);
      model.update(gradients);
      ASSERT_LE(largest_difference(reference.parameters(), model.table()), tolerance) << step;
    }
    EXPECT_TRUE(torch::equal(model.table()[3].tensor, before[3].tensor)) << "frozen";
    EXPECT_TRUE(torch::equal(model.table()[4].tensor, before[4].tensor)) << "never used: no decay";
    EXPECT_FALSE(torch::equal(model.table()[6].tensor, before[6].tensor)) << "used from step 7 on";
  }
}

TEST_P(FlatAdamwProperty, TheBitsDoNotDependOnHowTheBufferIsCut) {
  ShardedModel whole(make_parameters(GetParam()), example_plan(), 1);
  const std::vector<NamedTensor> shapes = make_parameters(GetParam());
  for (int step = 0; step < 5; ++step) whole.update(make_gradients(shapes, step), 0.37);
  for (int slices : {2, 3, 4, 5, 7, 8}) {
    ShardedModel cut(make_parameters(GetParam()), example_plan(), slices);
    for (int step = 0; step < 5; ++step) cut.update(make_gradients(shapes, step), 0.37);
    for (size_t i = 0; i < shapes.size(); ++i) {
      EXPECT_TRUE(torch::equal(whole.table()[i].tensor, cut.table()[i].tensor))
          << slices << kNames[i];
    }
  }
}

TEST_P(FlatAdamwProperty, PaddingStaysZero) {
  ShardedModel model(make_parameters(GetParam()), example_plan(), 3);
  const std::vector<NamedTensor> shapes = make_parameters(GetParam());
  double sum = 0;
  for (int step = 0; step < 3; ++step) model.update(make_gradients(shapes, step));
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (model.table()[i].is_trainable) {
      sum += model.table()[i].tensor.abs().to(torch::kDouble).sum().item<double>();
    }
  }
  EXPECT_NEAR(model.flat().abs().to(torch::kDouble).sum().item<double>(), sum, 1e-9 * sum);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, FlatAdamwProperty, ::testing::Values(c10::kFloat, c10::kDouble));

TEST(FlatAdamw, TheGradientScaleMultipliesTheGradient) {
  ShardedModel scaled(make_parameters(c10::kDouble), example_plan(), 2);
  ShardedModel plain(make_parameters(c10::kDouble), example_plan(), 2);
  const std::vector<NamedTensor> shapes = make_parameters(c10::kDouble);
  for (int step = 0; step < 3; ++step) {
    std::vector<at::Tensor> gradients = make_gradients(shapes, step);
    scaled.update(gradients, 0.25);
    for (at::Tensor& gradient : gradients) {
      if (gradient.defined()) gradient = gradient * 0.25;
    }
    plain.update(gradients);
  }
  EXPECT_TRUE(torch::equal(scaled.flat(), plain.flat()));
}

TEST(FlatAdamw, TorchsStepLrSchedulesIt) {
  const OptimizerPlan plan = example_plan();
  TorchReference reference(make_parameters(c10::kDouble), plan);
  ShardedModel model(make_parameters(c10::kDouble), plan, 1);
  torch::optim::StepLR reference_schedule(reference.optimizer(), 2, 0.1);
  torch::optim::StepLR schedule(model.optimizer(0), 2, 0.1);
  const std::vector<NamedTensor> shapes = make_parameters(c10::kDouble);
  for (int step = 0; step < 6; ++step) {
    const auto gradients = make_gradients(shapes, step);
    reference.update(gradients);
    model.update(gradients);
    reference_schedule.step();
    schedule.step();
  }
  const double starts[] = {1e-2, 3e-3};
  for (size_t group : {0u, 1u}) {
    const double lr = model.optimizer(0).param_groups()[group].options().get_lr();
    EXPECT_EQ(lr, reference.optimizer().param_groups()[group].options().get_lr());
    EXPECT_LT(lr, starts[group] / 9);
  }
  EXPECT_LE(largest_difference(reference.parameters(), model.table()), 4e-15);
}

TEST(FlatAdamw, GroupsListTheUsersOwnTrainableParameters) {
  ShardedModel model(make_parameters(c10::kFloat), example_plan(), 2);
  const auto& groups = model.optimizer(1).param_groups();
  ASSERT_EQ(groups.size(), 2u);
  ASSERT_EQ(groups[0].params().size(), 4u);
  ASSERT_EQ(groups[1].params().size(), 3u);
  EXPECT_TRUE(groups[0].params()[0].is_same(model.table()[0].tensor));
  EXPECT_TRUE(groups[1].params()[2].is_same(model.table()[6].tensor));
}

TEST(FlatAdamw, EditedHyperParametersShowAndTakeEffect) {
  ShardedModel edited(make_parameters(c10::kDouble), example_plan(), 1);
  ShardedModel plain(make_parameters(c10::kDouble), example_plan(), 1);
  FlatOptimizer& optimizer = edited.optimizer(0);
  std::vector<int64_t> before;
  optimizer.groups().append_hyper_parameters(before);
  const std::vector<std::string> names = optimizer.groups().hyper_parameter_names();
  ASSERT_EQ(before.size(), names.size());

  auto& group = static_cast<AdamWOptions&>(optimizer.param_groups()[1].options());
  group.set_lr(0.5);
  std::vector<int64_t> after;
  optimizer.groups().append_hyper_parameters(after);
  ASSERT_EQ(after.size(), before.size());
  std::vector<std::string> changed;
  for (size_t i = 0; i < names.size(); ++i) {
    if (before[i] != after[i]) changed.push_back(names[i]);
  }
  EXPECT_THAT(changed, ::testing::ElementsAre("group 'no decay': lr"));

  const auto gradients = make_gradients(make_parameters(c10::kDouble), 0);
  edited.update(gradients);
  plain.update(gradients);
  EXPECT_TRUE(torch::equal(edited.table()[0].tensor, plain.table()[0].tensor));
  EXPECT_FALSE(torch::equal(edited.table()[1].tensor, plain.table()[1].tensor));
}

TEST(FlatAdamw, EveryHyperParameterIsAmongTheWords) {
  ShardedModel model(make_parameters(c10::kFloat), example_plan(), 1);
  FlatOptimizer& optimizer = model.optimizer(0);
  const auto words = [&] {
    std::vector<int64_t> appended = {42};
    optimizer.groups().append_hyper_parameters(appended);
    EXPECT_EQ(appended.front(), 42) << "appends";
    return appended;
  };
  auto& group = static_cast<AdamWOptions&>(optimizer.param_groups()[0].options());
  auto last = words();
  const auto expect_change = [&](const char* what) {
    const auto now = words();
    EXPECT_NE(now, last) << what;
    last = now;
  };
  group.betas({0.5, 0.999});
  expect_change("beta1");
  group.betas({0.5, 0.5});
  expect_change("beta2");
  group.eps(1e-3);
  expect_change("eps");
  group.weight_decay(0.7);
  expect_change("weight_decay");
  group.amsgrad(true);
  expect_change("amsgrad");
}

TEST(FlatAdamw, StateIsTwiceTheShardsBytes) {
  ShardedModel model(make_parameters(c10::kFloat), example_plan(), 3);
  EXPECT_EQ(model.optimizer(0).state_bytes(), 2 * model.flat().numel() / 3 * 4);
}

TEST(FlatAdamw, ARankThatOwnsOnlyPaddingOrNothingUpdatesNothing) {
  const ParameterTable table({{"w", torch::ones({3}).requires_grad_()}});
  const OptimizerPlan plan = AdamWOptions(0.1);
  const std::vector<size_t> group_of = {0};
  const std::vector<uint8_t> used = {1};

  const at::Tensor padding = torch::zeros({64});
  auto only_padding = make_cpu_optimizer(table, plan, group_of, {{padding, {}}});
  only_padding->update(0, torch::ones({64}), std::vector<size_t>{0}, used, 1.0);
  EXPECT_TRUE(padding.eq(0).all().item<bool>());
  EXPECT_EQ(only_padding->state_bytes(), 2 * 64 * 4);

  auto nothing = make_cpu_optimizer(table, plan, group_of, {});
  EXPECT_EQ(nothing->state_bytes(), 0);
  std::vector<int64_t> a;
  std::vector<int64_t> b;
  only_padding->groups().append_hyper_parameters(a);
  nothing->groups().append_hyper_parameters(b);
  EXPECT_EQ(a, b);
}

TEST(FlatAdamwNegativeControl, WhatTheComparisonsMustCatch) {
  const std::vector<NamedTensor> shapes = make_parameters(c10::kDouble);
  const OptimizerPlan plan = example_plan();
  const auto difference_to_reference = [&](auto change) {
    TorchReference reference(make_parameters(c10::kDouble), plan);
    ShardedModel model(make_parameters(c10::kDouble), plan, 3);
    for (int step = 0; step < 3; ++step) {
      auto gradients = make_gradients(shapes, step);
      reference.update(gradients);
      change(gradients);
      model.update(gradients);
    }
    return largest_difference(reference.parameters(), model.table());
  };
  EXPECT_LE(difference_to_reference([](auto&) {}), 4e-15);
  EXPECT_GT(difference_to_reference([](auto& g) { g[7] = at::Tensor(); }), 1e-6) << "dropped";
  EXPECT_GT(difference_to_reference([](auto& g) {
              if (!g[2].defined()) g[2] = torch::zeros({7, 13}, torch::kDouble);
            }),
            1e-6)
      << "a zero gradient is not a missing one";
  EXPECT_GT(difference_to_reference([](auto& g) { g[0] = g[0] + 1e-3; }), 1e-9) << "shifted";
}

}  // namespace
}  // namespace tessera::internal
