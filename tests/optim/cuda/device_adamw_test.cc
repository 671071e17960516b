// AdamW on a device, by the fake module on streams that are late, against FlatAdamw on the CPU.
#include "tessera/optim/device_adamw.h"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/layout/flat_layout.h"
#include "tessera/core/step/narrow_float.h"
#include "tessera/optim/flat_adamw.h"
#include "tessera/tests/optim/cuda/device_kit.h"

namespace tessera::cuda {
namespace {

using ::testing::HasSubstr;

const std::vector<int64_t> kNumels = {130, 1, 65, 9001, 64, 0, 7};
constexpr size_t kFrozen = 6;

ParameterTable make_table() {
  std::vector<NamedTensor> named;
  for (size_t i = 0; i < kNumels.size(); ++i) {
    named.push_back({std::to_string(i), at::empty({kNumels[i]}).set_requires_grad(i != kFrozen)});
  }
  return ParameterTable(std::move(named));
}

OptimizerPlan make_plan() {
  using torch::optim::AdamWOptions;
  return OptimizerPlan(
      AdamWOptions(1e-2).weight_decay(0.1),
      {{"odd", [](std::string_view name) { return name == "1" || name == "3"; },
        AdamWOptions(3e-3).weight_decay(0).betas({0.8, 0.99})},
       {"last", [](std::string_view name) { return name == "4"; }, AdamWOptions(2e-3).eps(1e-6)}});
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.numel() == b.numel() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

at::Tensor random_values(int64_t numel, uint64_t seed) {
  const at::Tensor values = at::empty({numel}, at::kFloat);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < numel; ++i) values.mutable_data_ptr<float>()[i] = normal(random);
  return values;
}

/// The shards of one rank of `world`, two units: one optimizer on the CPU, one on the device, and
/// what they work on.
class Pair {
 public:
  Pair(const DeviceKit& kit, int world, int rank, at::ScalarType target) : kit_(kit) {
    const std::vector<std::vector<size_t>> units = {{0, 1, 2}, {5, 4, 3}};
    std::vector<OptimizerShard> on_cpu;
    std::vector<OptimizerShard> on_device;
    for (const std::vector<size_t>& unit : units) {
      std::vector<int64_t> numels;
      for (const size_t parameter : unit) numels.push_back(kNumels[parameter]);
      const FlatLayout layout(at::kFloat, numels, world);
      const Range range = layout.slice_range(rank);
      std::vector<Segment> segments = layout.segments(range);
      for (Segment& segment : segments) {
        segment.parameter = unit[segment.parameter];
        segment.buffer_offset -= range.begin;
      }
      const at::Tensor values = random_values(range.numel, unit.size() + segments.size());
      values_.push_back(values);
      device_values_.push_back(kit.put(values));
      targets_.push_back(kit.put(values.to(target)));
      segments_.push_back(segments);
      units_.push_back(unit);
      on_cpu.push_back({values_.back(), segments});
      on_device.push_back({device_values_.back(), segments});
    }
    const std::vector<size_t> group_of = make_plan().assign(table_).value();
    cpu_ = make_flat_adamw(table_, make_plan(), group_of, std::move(on_cpu));
    device_ = make_device_adamw(table_, make_plan(), group_of, std::move(on_device), kit.api(),
                                kit.device());
  }

  ~Pair() { kit_.wait(); }  // what is queued holds raw pointers
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  HostOptimizer& cpu() { return *cpu_; }
  DeviceOptimizer& device() { return *device_; }
  size_t shards() const { return values_.size(); }
  const at::Tensor& target(size_t shard) const { return targets_[shard]; }
  int64_t numel(size_t shard) const { return values_[shard].numel(); }

  /// One step of both with gradients of `dtype`; both leave everything alone unless it applies.
  void step(uint64_t seed, at::ScalarType dtype, const std::vector<uint8_t>& used, double scale,
            bool applies = true) {
    StepVerdict verdict = {};
    verdict.gradient_scale = scale;
    verdict.applies = applies ? 1 : 0;
    std::vector<int64_t> verdict_words(sizeof(verdict) / sizeof(int64_t));
    std::memcpy(verdict_words.data(), &verdict, sizeof(verdict));
    const at::Tensor device_verdict = kit_.put(verdict_words);
    const at::Tensor device_used = kit_.put(std::vector<int64_t>(used.begin(), used.end()));
    device_->advance(static_cast<const StepVerdict*>(device_verdict.const_data_ptr()),
                     device_used.const_data_ptr<int64_t>());
    for (size_t shard = 0; shard < shards(); ++shard) {
      const at::Tensor gradient = random_values(numel(shard), seed * 100 + shard).to(dtype);
      device_->update(shard, kit_.put(gradient), targets_[shard]);
      if (!applies) continue;
      cpu_->update(shard, gradient.to(at::kFloat), units_[shard], used, scale);
    }
    kit_.wait();
  }

  /// "" if the device has the bits of the CPU.
  std::string differences() {
    std::string text;
    for (size_t shard = 0; shard < shards(); ++shard) {
      const std::string name = "shard " + std::to_string(shard) + " ";
      if (!same_bits(kit_.get(device_values_[shard]), values_[shard])) text += name + "values, ";
      for (const size_t state : {0U, 1U}) {
        if (!same_bits(kit_.get(device_->state(shard, state)), cpu_->state(shard, state))) {
          text += name + device_->state_names()[state] + ", ";
        }
      }
      // Everything that was ever updated is in the target as well; the rest began there.
      const at::Tensor cast = values_[shard].to(targets_[shard].scalar_type());
      if (!same_bits(kit_.get(targets_[shard]), cast)) text += name + "target, ";
    }
    if (cpu_->step_counts() != device_->step_counts()) text += "step counts";
    return text;
  }

 private:
  const DeviceKit& kit_;
  const ParameterTable table_ = make_table();
  std::vector<at::Tensor> values_;
  std::vector<at::Tensor> device_values_;
  std::vector<at::Tensor> targets_;
  std::vector<std::vector<Segment>> segments_;
  std::vector<std::vector<size_t>> units_;
  std::unique_ptr<HostOptimizer> cpu_;
  std::unique_ptr<DeviceOptimizer> device_;
};

std::vector<uint8_t> used_in(int step) {
  std::vector<uint8_t> used(kNumels.size(), 1);
  used[kFrozen] = 0;
  used[static_cast<size_t>(step) % 5] = 0;
  return used;
}

TEST(DeviceAdamw, GivesTheBitsOfFlatAdamwOverManySteps) {
  const HostKit kit(std::chrono::microseconds(20));
  for (const auto& [gradient, target] : {std::pair{at::kFloat, at::kFloat},
                                         {at::kFloat, at::kBFloat16},
                                         {at::kFloat, at::kHalf},
                                         {at::kBFloat16, at::kBFloat16},
                                         {at::kHalf, at::kHalf},
                                         {at::kHalf, at::kFloat}}) {
    for (const int world : {1, 2, 3}) {
      for (int rank = 0; rank < world; ++rank) {
        Pair pair(kit, world, rank, target);
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

TEST(DeviceAdamw, ReadsHyperParametersAtEachStep) {
  const HostKit kit(std::chrono::microseconds(20));
  Pair pair(kit, 1, 0, at::kFloat);
  for (int step = 0; step < 10; ++step) {
    for (FlatOptimizer* optimizer :
         {static_cast<FlatOptimizer*>(&pair.cpu()), static_cast<FlatOptimizer*>(&pair.device())}) {
      for (auto& group : optimizer->param_groups()) group.options().set_lr(1e-2 / (step + 1));
    }
    pair.step(static_cast<uint64_t>(step), at::kFloat, used_in(step), 1.0);
    ASSERT_EQ(pair.differences(), "") << step;
  }
  // Negative control: one rate that differs shows.
  pair.device().param_groups()[1].options().set_lr(5e-3);
  pair.step(11, at::kFloat, used_in(2), 1.0);
  EXPECT_EQ(pair.differences(), "shard 0 values, shard 0 target, shard 1 values, shard 1 target, ");
}

TEST(DeviceAdamw, AnotherOneGoesOnFromItsState) {
  const HostKit kit(std::chrono::microseconds(20));
  Pair first(kit, 3, 1, at::kBFloat16);
  Pair second(kit, 3, 1, at::kBFloat16);
  for (int step = 0; step < 4; ++step) {
    first.step(static_cast<uint64_t>(step), at::kBFloat16, used_in(step), 1.0);
  }
  // The second's CPU half trains; its device half is loaded from that.
  for (int step = 0; step < 4; ++step) {
    second.step(static_cast<uint64_t>(step), at::kBFloat16, used_in(step), 1.0);
  }
  EXPECT_EQ(first.device().step_counts(), second.cpu().step_counts());
  second.device().set_step_counts(std::vector<int64_t>(kNumels.size(), 77));
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

TEST(DeviceAdamw, NoCallButStepCountsWaitsForTheDevice) {
  const HostKit kit;
  Pair pair(kit, 1, 0, at::kFloat);
  StepVerdict verdict = {};
  verdict.gradient_scale = verdict.applies = 1;
  const std::vector<int64_t> used(kNumels.size(), 1);
  const at::Tensor gradient = kit.put(random_values(pair.numel(0), 3));
  EXPECT_TRUE(kit.returns_while_device_stands([&] {
    for (int step = 0; step < 5; ++step) {
      pair.device().advance(&verdict, used.data());
      pair.device().update(0, gradient, pair.target(0));
      pair.device().update(0, gradient, at::Tensor());
    }
    pair.device().set_step_counts(std::vector<int64_t>(kNumels.size(), 3));
    pair.device().advance(&verdict, used.data());
  }));
  EXPECT_EQ(pair.device().step_counts(), std::vector<int64_t>(kNumels.size(), 4));
}

TEST(DeviceAdamw, UnusedParametersAndPaddingStayAsTheyAre) {
  const HostKit kit;
  Pair pair(kit, 1, 0, at::kHalf);
  const at::Tensor before = kit.get(pair.target(0));
  pair.step(1, at::kFloat, {1, 0, 0, 0, 0, 0, 0}, 1.0);
  const at::Tensor after = kit.get(pair.target(0));
  EXPECT_FALSE(same_bits(before.narrow(0, 0, 130), after.narrow(0, 0, 130)));
  EXPECT_TRUE(same_bits(before.narrow(0, 130, before.numel() - 130),
                        after.narrow(0, 130, before.numel() - 130)));
  EXPECT_EQ(pair.device().step_counts(), (std::vector<int64_t>{1, 0, 0, 0, 0, 0, 0}));
}

TEST(DeviceAdamw, NegativeControlAForgottenAdvanceIsNoticed) {
  const HostKit kit;
  Pair pair(kit, 1, 0, at::kFloat);
  pair.step(1, at::kFloat, used_in(0), 1.0);
  EXPECT_EQ(pair.differences(), "");
  const at::Tensor gradient = random_values(pair.numel(0), 3);
  const std::vector<size_t> unit = {0, 1, 2};
  pair.cpu().update(0, gradient, unit, std::vector<uint8_t>(kNumels.size(), 1), 1.0);
  const at::Tensor on_device = kit.put(gradient);
  pair.device().update(0, on_device, pair.target(0));
  EXPECT_NE(pair.differences(), "") << "by the numbers of the step before";
}

TEST(DeviceAdamw, IsTheOptimizerThatTheUserSees) {
  const HostKit kit;
  Pair pair(kit, 2, 1, at::kFloat);
  EXPECT_EQ(pair.device().state_names(), pair.cpu().state_names());
  EXPECT_EQ(pair.device().state_bytes(), pair.cpu().state_bytes());
  EXPECT_EQ(pair.device().hyper_parameter_names(), pair.cpu().hyper_parameter_names());
  std::vector<int64_t> device_words;
  std::vector<int64_t> cpu_words;
  pair.device().append_hyper_parameters(device_words);
  pair.cpu().append_hyper_parameters(cpu_words);
  EXPECT_EQ(device_words, cpu_words);
  EXPECT_EQ(pair.device().param_groups().size(), 3U);
  EXPECT_THAT(error_of([&] { pair.device().step(); }), HasSubstr("call engine->step()"));
}

TEST(DeviceAdamw, RefusesWhatDoesNotFit) {
  const HostKit kit;
  Pair pair(kit, 1, 0, at::kFloat);
  const int64_t numel = pair.numel(0);
  const std::string size = std::to_string(numel);
  const at::Tensor fits = at::zeros({numel});
  EXPECT_EQ(error_of([&] { pair.device().update(2, fits, fits); }),
            "[optim] shard: got number 2, expected less than 2");
  EXPECT_EQ(error_of([&] { pair.device().update(0, fits.narrow(0, 0, 64), fits); }),
            "[cuda] gradient: got Float [64] on cpu, expected a contiguous [" + size +
                "] of Float, BFloat16 or Half on cpu");
  EXPECT_EQ(error_of([&] { pair.device().update(0, fits, fits.to(at::kDouble)); }),
            "[cuda] target: got Double [" + size + "] on cpu, expected a contiguous [" + size +
                "] of Float, BFloat16 or Half on cpu");
  pair.device().param_groups()[0].options().set_lr(-1.0);
  EXPECT_THAT(error_of([&] { pair.device().advance(nullptr, nullptr); }),
              HasSubstr("[optim] defaults: lr: got -1"));

  const ParameterTable table({{"a", at::empty({64}, at::kDouble).set_requires_grad(true)}});
  const OptimizerPlan plan((torch::optim::AdamWOptions()));
  EXPECT_EQ(error_of([&] {
              make_device_adamw(table, plan, {0}, {{at::zeros({64}, at::kDouble), {{0, 0, 0, 64}}}},
                                kit.api(), kit.device());
            }),
            "[optim] shard: got Double on cpu, expected Float on cpu; train other dtypes on the "
            "CPU");
}

}  // namespace
}  // namespace tessera::cuda
