#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/optim/adamw.h>

#include "tessera/flat_layout.h"
#include "tessera/optim/slices/flat_optimizer.h"
#include "tessera/tests/optim/cuda/device_kit.h"
#include "tessera/tests/support/same_bits.h"

namespace tessera::internal::cuda {

/// The parameters' numbers of elements; the last parameter is frozen.
inline const std::vector<int64_t> kPairNumels = {130, 1, 65, 9001, 64, 0, 7};

inline ParameterTable pair_table() {
  std::vector<NamedTensor> named;
  for (size_t i = 0; i < kPairNumels.size(); ++i) {
    named.push_back({std::to_string(i),
                     at::empty({kPairNumels[i]}).set_requires_grad(i + 1 != kPairNumels.size())});
  }
  return ParameterTable(std::move(named));
}

inline OptimizerPlan pair_plan() {
  using torch::optim::AdamWOptions;
  return OptimizerPlan(
      AdamWOptions(1e-2).weight_decay(0.1),
      {{"odd", [](std::string_view name) { return name == "1" || name == "3"; },
        AdamWOptions(3e-3).weight_decay(0).betas({0.8, 0.99})},
       {"last", [](std::string_view name) { return name == "4"; }, AdamWOptions(2e-3).eps(1e-6)}});
}

inline at::Tensor random_values(int64_t numel, uint64_t seed) {
  at::Tensor values = at::empty({numel}, at::kFloat);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < numel; ++i) values.mutable_data_ptr<float>()[i] = normal(random);
  return values;
}

/// The shards of one rank of `world`, in two units: one optimizer on the CPU, one on the device,
/// and their data.
class OptimizerPair {
 public:
  OptimizerPair(const DeviceKit& kit, int world, int rank, at::ScalarType target,
                const OptimizerPlan& plan = pair_plan())
      : kit_(kit) {
    const std::vector<std::vector<size_t>> units = {{0, 1, 2}, {5, 4, 3}};
    std::vector<OptimizerShard> on_cpu;
    std::vector<OptimizerShard> on_device;
    for (const std::vector<size_t>& unit : units) {
      std::vector<int64_t> numels;
      numels.reserve(unit.size());
      for (const size_t parameter : unit) numels.push_back(kPairNumels[parameter]);
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
    const std::vector<size_t> group_of = plan.assign(table_).value();
    cpu_ = make_cpu_optimizer(table_, plan, group_of, std::move(on_cpu));
    device_ =
        make_gpu_optimizer(table_, plan, group_of, std::move(on_device), kit.api(), kit.device());
  }

  ~OptimizerPair() { kit_.wait(); }  // queued work holds raw pointers
  OptimizerPair(const OptimizerPair&) = delete;
  OptimizerPair& operator=(const OptimizerPair&) = delete;

  CpuOptimizer& cpu() { return *cpu_; }
  GpuOptimizer& device() { return *device_; }
  size_t shards() const { return values_.size(); }
  const at::Tensor& target(size_t shard) const { return targets_[shard]; }
  int64_t numel(size_t shard) const { return values_[shard].numel(); }

  /// Makes one step of both with gradients of `dtype`; without `applies` nothing changes.
  void step(uint64_t seed, at::ScalarType dtype, const std::vector<uint8_t>& used, double scale,
            bool applies = true) {
    StepOutcome outcome = {};
    outcome.gradient_scale = scale;
    outcome.applies = applies ? 1 : 0;
    std::vector<int64_t> outcome_words(sizeof(outcome) / sizeof(int64_t));
    std::memcpy(outcome_words.data(), &outcome, sizeof(outcome));
    const at::Tensor device_outcome = kit_.put(outcome_words);
    const at::Tensor device_used = kit_.put(std::vector<int64_t>(used.begin(), used.end()));
    device_->advance(static_cast<const StepOutcome*>(device_outcome.const_data_ptr()),
                     device_used.const_data_ptr<int64_t>());
    for (size_t shard = 0; shard < shards(); ++shard) {
      const at::Tensor gradient = random_values(numel(shard), seed * 100 + shard).to(dtype);
      device_->update(shard, kit_.put(gradient), targets_[shard]);
      if (!applies) continue;
      cpu_->update(shard, gradient.to(at::kFloat), units_[shard], used, scale);
    }
    kit_.wait();
  }

  /// Describes where the device's bits differ from the CPU's; "" if nowhere.
  std::string differences() {
    std::string text;
    for (size_t shard = 0; shard < shards(); ++shard) {
      const std::string name = "shard " + std::to_string(shard) + " ";
      if (!testing::have_same_bits(kit_.get(device_values_[shard]), values_[shard]))
        text += name + "values, ";
      for (size_t state = 0; state < cpu_->states().size(); ++state) {
        if (!testing::have_same_bits(kit_.get(device_->state(shard, state)),
                                     cpu_->state(shard, state))) {
          text += name + device_->states()[state].name + ", ";
        }
      }
      // The target holds the cast of all updated values; the others had it from the beginning.
      const at::Tensor cast = values_[shard].to(targets_[shard].scalar_type());
      if (!testing::have_same_bits(kit_.get(targets_[shard]), cast)) text += name + "target, ";
    }
    if (cpu_->step_counts() != device_->step_counts()) text += "step counts";
    return text;
  }

 private:
  const DeviceKit& kit_;
  const ParameterTable table_ = pair_table();
  std::vector<at::Tensor> values_;
  std::vector<at::Tensor> device_values_;
  std::vector<at::Tensor> targets_;
  std::vector<std::vector<Segment>> segments_;
  std::vector<std::vector<size_t>> units_;
  std::unique_ptr<CpuOptimizer> cpu_;
  std::unique_ptr<GpuOptimizer> device_;
};

/// The parameters used in step `step`: each step leaves out another one.
inline std::vector<uint8_t> used_in(int step) {
  std::vector<uint8_t> used(kPairNumels.size(), 1);
  used.back() = 0;
  used[static_cast<size_t>(step) % 5] = 0;
  return used;
}

}  // namespace tessera::internal::cuda
