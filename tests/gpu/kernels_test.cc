// Sums, decision and updates of a step on a GPU, driven by LibTorch's device: with the fakes, and
// on a GPU with the real kernels.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/step/grad_norm.h"
#include "tessera/optim/cuda/step_decision.h"
#include "tessera/optim/cuda/step_sums.h"
#include "tessera/tests/gpu/same_on_both.h"
#include "tessera/tests/optim/cuda/optimizer_pair.h"
#include "tessera/tests/support/gpu_for_tests.h"

namespace tessera::internal::cuda {
namespace {

using tessera::internal::testing::a_gpu;
using tessera::internal::testing::fake_gpu;

DeviceKit gpu_kit() { return {device_at(a_gpu()), load_api().value()}; }

/// Returns how often the host has waited for the GPU; 0 if nobody counts.
int64_t waits() {
  return fake_gpu() == nullptr ? 0 : fake_gpu()->host_syncs(static_cast<int>(a_gpu().index()));
}

TEST(KernelsOnGpu, AdamwGivesTheBitsOfTheCpu) {
  const DeviceKit kit = gpu_kit();
  for (const auto& [gradient, target] : {std::pair{at::kFloat, at::kFloat},
                                         {at::kFloat, at::kBFloat16},
                                         {at::kBFloat16, at::kBFloat16},
                                         {at::kHalf, at::kHalf}}) {
    OptimizerPair pair(kit, 3, 1, target);
    for (int step = 0; step < 20; ++step) {
      pair.step(static_cast<uint64_t>(step), gradient, used_in(step), step % 3 == 0 ? 0.3 : 1.0,
                /*applies=*/step % 7 != 5);
    }
    EXPECT_EQ(pair.differences(), "") << gradient << " into " << target;
  }
}

TEST(KernelsOnGpu, SumsAndDecisionAreThoseOfTheCpuAndWaitForNothing) {
  const DeviceKit kit = gpu_kit();
  const ParameterTable table = pair_table();
  const UnitPlan plan(table, {{"first", {0, 1, 2}}, {"second", {5, 4, 3}}}, 1);
  StepSums sums(table, plan, SliceMap({.parameters = 1, .gradients = 1, .optimizer = 1}, 1, 0),
                kit.api(), kit.device());
  const LossScale schedule = {.initial = 8.0, .growth_interval = 2};
  StepDecision decision(table.size(), 0.5, schedule, kit.api(), kit.device());

  double scale = schedule.initial;
  for (int step = 0; step < 6; ++step) {
    const bool overflows = step == 3;
    ExactSum squares;
    std::vector<at::Tensor> gradients;
    for (size_t unit = 0; unit < plan.size(); ++unit) {
      const FlatLayout& layout = plan[unit].layout;
      const at::Tensor gradient = random_values(layout.numel(), static_cast<uint64_t>(step) + unit);
      if (overflows && unit == 1) {
        gradient[layout.parameter_range(2).begin + 9000] = std::numeric_limits<float>::infinity();
      }
      for (const Segment& segment : layout.segments({0, layout.numel()})) {
        add_squares(gradient, segment, squares);
      }
      gradients.push_back(kit.put(gradient));
    }
    const std::vector<uint8_t> used = used_in(step);

    const int64_t before = waits();
    sums.clear();
    for (size_t unit = 0; unit < plan.size(); ++unit) {
      sums.count_non_finite(unit, gradients[unit]);
      sums.add_squares(unit, gradients[unit], 0);
    }
    sums.write_own_words(used, 0xFEDCBA9876543210U + static_cast<uint64_t>(step), step == 4);
    decision.decide(sums.words(), 1);
    decision.start_reading(sums.words());
    const at::Tensor scaled = decision.scale();
    EXPECT_EQ(waits(), before) << "nothing but read() waits";

    const StepDecision::Reading reading = decision.read();
    EXPECT_EQ(reading.outcome.applies, overflows || step == 4 ? 0 : 1) << step;
    EXPECT_EQ(reading.refused, step == 4);
    EXPECT_TRUE(reading.agreed);
    EXPECT_EQ(reading.used, used);
    EXPECT_EQ(reading.outcome.loss_scale, scale);
    std::vector<int64_t> non_finite(table.size(), 0);
    if (overflows) non_finite[3] = 1;
    EXPECT_EQ(reading.non_finite, non_finite);
    if (!overflows) {
      EXPECT_EQ(reading.squares.value(), squares.value());
      EXPECT_EQ(reading.outcome.grad_norm, std::sqrt(squares.value()) / scale);
    }
    scale = reading.scale.scale;
    EXPECT_EQ(scaled.item<double>(), scale);
  }
  EXPECT_EQ(scale, 8.0) << "grown, halved, and not long enough good since";
}

/// The GPU that was current when a kernel was launched. Global, because a function of the interface
/// has no object.
int current_at_launch = -1;
decltype(&tessera_cuda_zero) real_zero = nullptr;

// A stream belongs to one GPU, and the module launches kernels on the current one.
TEST(KernelsOnGpu, LaunchOnTheirOwnDeviceWhateverIsCurrent) {
  const DeviceKit kit = gpu_kit();
  auto api = std::make_shared<Api>(*kit.api());
  real_zero = api->zero;
  api->zero = [](void* to, int64_t bytes, void* stream) {
    current_at_launch = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->getDevice().index();
    return real_zero(to, bytes, stream);
  };
  const c10::DeviceGuard elsewhere(at::Device(at::kCUDA, 0));
  const StepDecision decision(1, 1.0, std::nullopt, api, kit.device());
  EXPECT_EQ(current_at_launch, a_gpu().index());
  EXPECT_EQ(c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->getDevice().index(), 0);
  kit.wait();
}

TEST(KernelsOnGpu, NegativeControlAWaitIsCounted) {
  if (fake_gpu() == nullptr) GTEST_SKIP() << "a real GPU does not count";
  const DeviceKit kit = gpu_kit();
  const int64_t before = waits();
  kit.wait();
  EXPECT_GT(waits(), before);
}

}  // namespace
}  // namespace tessera::internal::cuda
