// Optimizers on a device, with the fake module on delayed streams, compared with those on the CPU.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "tessera/lion_options.h"
#include "tessera/tests/optim/cuda/host_kit.h"
#include "tessera/tests/optim/cuda/optimizer_pair.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal::cuda {
namespace {

using ::testing::HasSubstr;

TEST(GpuElementwise, GivesTheBitsOfTheCpuOverManySteps) {
  const HostKit kit(std::chrono::microseconds(20));
  for (const auto& [gradient, target] : {std::pair{at::kFloat, at::kFloat},
                                         {at::kFloat, at::kBFloat16},
                                         {at::kFloat, at::kHalf},
                                         {at::kBFloat16, at::kBFloat16},
                                         {at::kHalf, at::kHalf},
                                         {at::kHalf, at::kFloat}}) {
    for (const int world : {1, 2, 3}) {
      for (int rank = 0; rank < world; ++rank) {
        OptimizerPair pair(kit, world, rank, target);
        for (int step = 0; step < 25; ++step) {
          pair.step(static_cast<uint64_t>(step), gradient, used_in(step), step % 3 == 0 ? 0.3 : 1.0,
                    /*applies=*/step % 7 != 5);
        }
        EXPECT_EQ(pair.differences(), "")
            << gradient << " into " << target << ", rank " << rank << " of " << world;
      }
    }
  }
}

struct DevicePlan {
  const char* name;
  OptimizerPlan plan;
};

/// Every algorithm that has kernels, with each option that its formula branches on; alone and
/// mixed.
std::vector<DevicePlan> device_plans() {
  using torch::optim::AdagradOptions;
  using torch::optim::AdamOptions;
  using torch::optim::AdamWOptions;
  using torch::optim::RMSpropOptions;
  using torch::optim::SGDOptions;
  const auto odd = [](std::string_view name) { return name == "1" || name == "3"; };
  const auto last = [](std::string_view name) { return name == "4"; };
  return {{"AdamW, amsgrad in a group",
           {AdamWOptions(1e-2), {{"odd", odd, AdamWOptions(1e-2).amsgrad(true)}}}},
          {"Adam",
           {AdamOptions(1e-2),
            {{"odd", odd, AdamOptions(1e-2).weight_decay(0.1)},
             {"last", last, AdamOptions(1e-2).weight_decay(0.1).amsgrad(true)}}}},
          {"Adam, amsgrad", AdamOptions(1e-2).amsgrad(true)},
          {"SGD", {SGDOptions(1e-2), {{"odd", odd, SGDOptions(1e-2).weight_decay(0.1)}}}},
          {"SGD, momentum",
           {SGDOptions(1e-2).momentum(0.9).dampening(0.2),
            {{"odd", odd, SGDOptions(1e-2).momentum(0.8).nesterov(true).weight_decay(0.1)},
             {"last", last, SGDOptions(1e-2)}}}},
          {"Lion", {LionOptions(1e-3), {{"odd", odd, LionOptions(1e-2).weight_decay(0.1)}}}},
          {"Adagrad",
           {AdagradOptions(1e-2).initial_accumulator_value(0.25),
            {{"odd", odd, AdagradOptions(1e-2).lr_decay(0.1).weight_decay(0.1)}}}},
          {"RMSprop",
           {RMSpropOptions(1e-2),
            {{"odd", odd, RMSpropOptions(1e-2).momentum(0.9).weight_decay(0.1)},
             {"last", last, RMSpropOptions(1e-2).centered(true)}}}},
          {"RMSprop, centered", RMSpropOptions(1e-2).centered(true).momentum(0.5)},
          {"three algorithms",
           {AdamWOptions(1e-2),
            {{"odd", odd, SGDOptions(1e-2).momentum(0.9)}, {"last", last, AdamOptions(1e-2)}}}}};
}

TEST(GpuElementwise, GivesTheBitsOfTheCpuForEveryAlgorithm) {
  const HostKit kit(std::chrono::microseconds(20));
  for (const DevicePlan& each : device_plans()) {
    EXPECT_EQ(without_kernels(each.plan), "");
    for (const auto& [world, rank] : {std::pair{1, 0}, {3, 0}, {3, 1}, {3, 2}}) {
      OptimizerPair pair(kit, world, rank, at::kBFloat16, each.plan);
      EXPECT_EQ(pair.device().state_bytes(), pair.cpu().state_bytes());
      for (int step = 0; step < 8; ++step) {
        pair.step(static_cast<uint64_t>(step), step % 2 == 0 ? at::kFloat : at::kBFloat16,
                  used_in(step), step % 3 == 0 ? 0.3 : 1.0, /*applies=*/step != 5);
      }
      EXPECT_EQ(pair.differences(), "") << each.name << ", rank " << rank << " of " << world;
    }
  }
}

TEST(GpuElementwise, NegativeControlAnotherAlgorithmIsNoticed) {
  const HostKit kit;
  OptimizerPair pair(kit, 1, 0, at::kFloat,
                     OptimizerPlan(torch::optim::SGDOptions(1e-2).momentum(0.9)));
  pair.step(1, at::kFloat, used_in(0), 1.0);
  ASSERT_EQ(pair.differences(), "");
  for (auto& group : pair.device().param_groups()) {
    static_cast<torch::optim::SGDOptions&>(group.options()).nesterov(true);
  }
  pair.step(2, at::kFloat, used_in(0), 1.0);
  EXPECT_NE(pair.differences(), "");
}

TEST(GpuElementwise, ReadsHyperParametersAtEachStep) {
  const HostKit kit(std::chrono::microseconds(20));
  OptimizerPair pair(kit, 1, 0, at::kFloat);
  for (int step = 0; step < 10; ++step) {
    for (FlatOptimizer* optimizer :
         {static_cast<FlatOptimizer*>(&pair.cpu()), static_cast<FlatOptimizer*>(&pair.device())}) {
      for (auto& group : optimizer->param_groups()) group.options().set_lr(1e-2 / (step + 1));
    }
    pair.step(static_cast<uint64_t>(step), at::kFloat, used_in(step), 1.0);
    ASSERT_EQ(pair.differences(), "") << step;
  }
  // Negative control: one different rate is noticed.
  pair.device().param_groups()[1].options().set_lr(5e-3);
  pair.step(11, at::kFloat, used_in(2), 1.0);
  EXPECT_EQ(pair.differences(), "shard 0 values, shard 0 target, shard 1 values, shard 1 target, ");
}

TEST(GpuElementwise, AnotherOneGoesOnFromItsState) {
  const HostKit kit(std::chrono::microseconds(20));
  OptimizerPair first(kit, 3, 1, at::kBFloat16);
  OptimizerPair second(kit, 3, 1, at::kBFloat16);
  for (int step = 0; step < 4; ++step) {
    first.step(static_cast<uint64_t>(step), at::kBFloat16, used_in(step), 1.0);
  }
  // The second's CPU half trains; its state is loaded into its device half.
  for (int step = 0; step < 4; ++step) {
    second.step(static_cast<uint64_t>(step), at::kBFloat16, used_in(step), 1.0);
  }
  EXPECT_EQ(first.device().step_counts(), second.cpu().step_counts());
  second.device().set_step_counts(std::vector<int64_t>(kPairNumels.size(), 77));
  for (size_t shard = 0; shard < second.shards(); ++shard) {
    for (const size_t state : {0U, 1U}) {
      const at::Tensor& moment = second.device().state(shard, state);
      kit.write(moment, at::zeros({moment.numel()}));
    }
  }
  kit.wait();
  EXPECT_NE(second.differences(), "");
  second.device().set_step_counts(first.device().step_counts());
  for (size_t shard = 0; shard < second.shards(); ++shard) {
    for (const size_t state : {0U, 1U}) {
      kit.write(second.device().state(shard, state), kit.get(first.device().state(shard, state)));
      kit.wait();
    }
  }
  for (int step = 4; step < 8; ++step) {
    second.step(static_cast<uint64_t>(step), at::kBFloat16, used_in(step), 0.5);
  }
  EXPECT_EQ(second.differences(), "");
}

TEST(GpuElementwise, NoCallButStepCountsWaitsForTheDevice) {
  const HostKit kit;
  OptimizerPair pair(kit, 1, 0, at::kFloat);
  StepOutcome outcome = {};
  outcome.gradient_scale = outcome.applies = 1;
  const std::vector<int64_t> used(kPairNumels.size(), 1);
  const at::Tensor gradient = kit.put(random_values(pair.numel(0), 3));
  EXPECT_TRUE(kit.returns_while_device_stands([&] {
    for (int step = 0; step < 5; ++step) {
      pair.device().advance(&outcome, used.data());
      pair.device().update(0, gradient, pair.target(0));
      pair.device().update(0, gradient, at::Tensor());
    }
    pair.device().set_step_counts(std::vector<int64_t>(kPairNumels.size(), 3));
    pair.device().advance(&outcome, used.data());
  }));
  EXPECT_EQ(pair.device().step_counts(), std::vector<int64_t>(kPairNumels.size(), 4));
}

TEST(GpuElementwise, UnusedParametersAndPaddingStayAsTheyAre) {
  const HostKit kit;
  OptimizerPair pair(kit, 1, 0, at::kHalf);
  const at::Tensor before = kit.get(pair.target(0));
  pair.step(1, at::kFloat, {1, 0, 0, 0, 0, 0, 0}, 1.0);
  const at::Tensor after = kit.get(pair.target(0));
  EXPECT_FALSE(testing::have_same_bits(before.narrow(0, 0, 130), after.narrow(0, 0, 130)));
  EXPECT_TRUE(testing::have_same_bits(before.narrow(0, 130, before.numel() - 130),
                                      after.narrow(0, 130, before.numel() - 130)));
  EXPECT_EQ(pair.device().step_counts(), (std::vector<int64_t>{1, 0, 0, 0, 0, 0, 0}));
}

TEST(GpuElementwise, NegativeControlAForgottenAdvanceIsNoticed) {
  const HostKit kit;
  OptimizerPair pair(kit, 1, 0, at::kFloat);
  pair.step(1, at::kFloat, used_in(0), 1.0);
  EXPECT_EQ(pair.differences(), "");
  const at::Tensor gradient = random_values(pair.numel(0), 3);
  const std::vector<size_t> unit = {0, 1, 2};
  pair.cpu().update(0, gradient, unit, std::vector<uint8_t>(kPairNumels.size(), 1), 1.0);
  const at::Tensor on_device = kit.put(gradient);
  pair.device().update(0, on_device, pair.target(0));
  EXPECT_NE(pair.differences(), "") << "by the numbers of the step before";
}

TEST(GpuElementwise, IsTheOptimizerThatTheUserSees) {
  const HostKit kit;
  OptimizerPair pair(kit, 2, 1, at::kFloat);
  EXPECT_EQ(&pair.device().groups().algorithm(0), &pair.cpu().groups().algorithm(0));
  EXPECT_EQ(pair.device().state_bytes(), pair.cpu().state_bytes());
  EXPECT_EQ(pair.device().groups().hyper_parameter_names(),
            pair.cpu().groups().hyper_parameter_names());
  std::vector<int64_t> device_words;
  std::vector<int64_t> cpu_words;
  pair.device().groups().append_hyper_parameters(device_words);
  pair.cpu().groups().append_hyper_parameters(cpu_words);
  EXPECT_EQ(device_words, cpu_words);
  EXPECT_EQ(pair.device().param_groups().size(), 3U);
  EXPECT_THAT(testing::message_of([&] { pair.device().step(); }), HasSubstr("call engine->step()"));
}

TEST(GpuElementwise, RefusesWhatDoesNotFit) {
  const HostKit kit;
  OptimizerPair pair(kit, 1, 0, at::kFloat);
  const int64_t numel = pair.numel(0);
  const std::string size = std::to_string(numel);
  const at::Tensor fits = at::zeros({numel});
  EXPECT_EQ(testing::message_of([&] { pair.device().update(2, fits, fits); }),
            "[optim] shard: got number 2, expected less than 2");
  EXPECT_EQ(testing::message_of([&] { pair.device().update(0, fits.narrow(0, 0, 64), fits); }),
            "[cuda] gradient: got Float [64] on cpu, expected a contiguous [" + size +
                "] of Float, BFloat16 or Half on cpu");
  EXPECT_EQ(testing::message_of([&] { pair.device().update(0, fits, fits.to(at::kDouble)); }),
            "[cuda] target: got Double [" + size + "] on cpu, expected a contiguous [" + size +
                "] of Float, BFloat16 or Half on cpu");
  pair.device().param_groups()[0].options().set_lr(-1.0);
  EXPECT_THAT(testing::message_of([&] { pair.device().advance(nullptr, nullptr); }),
              HasSubstr("[optim] defaults: lr: got -1"));

  const ParameterTable table({{"a", at::empty({64}, at::kDouble).set_requires_grad(true)}});
  const OptimizerPlan plan((torch::optim::AdamWOptions()));
  EXPECT_EQ(testing::message_of([&] {
              make_gpu_optimizer(table, plan, {0},
                                 {{at::zeros({64}, at::kDouble), {{0, 0, 0, 64}}}}, kit.api(),
                                 kit.device());
            }),
            "[optim] shard: got Double on cpu, expected Float on cpu; train other dtypes on the "
            "CPU");
}

}  // namespace
}  // namespace tessera::internal::cuda
