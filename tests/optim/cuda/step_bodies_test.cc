// A whole step by the kernels' bodies (squares, result, advance, update, loss scale), compared with
// the CPU's ExactSum, clip_factor, LossScaler and FlatAdamw.
#include "tessera/optim/cuda/step_bodies.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include "tessera/core/numbers/exact_sum.h"
#include "tessera/core/step/grad_norm.h"
#include "tessera/flat_layout.h"
#include "tessera/optim/cuda/pieces.h"
#include "tessera/optim/cuda/update_body.h"
#include "tessera/optim/formulas/loss_scaler.h"
#include "tessera/optim/slices/flat_optimizer.h"
#include "tessera/tests/optim/cuda/adamw_launch.h"
#include "tessera/tests/optim/cuda/emulation.h"

namespace tessera::internal::cuda {
namespace {

constexpr double kInfiniteNorm = std::numeric_limits<double>::infinity();

/// One rank's words, without a hash, for one parameter.
std::vector<int64_t> step_words_of(const ExactSum& sum, int64_t non_finite = 0) {
  std::array<int64_t, ExactSum::kWords> squares;
  sum.store(squares);
  std::vector<int64_t> words(static_cast<size_t>(step_words(1)), 0);
  std::copy(squares.begin(), squares.end(), words.begin());
  words[static_cast<size_t>(kNonFiniteAt)] = non_finite;
  return words;
}

StepOutcome decide(const std::vector<int64_t>& words, double loss_scale, double max_norm,
                   int64_t world_size = 1) {
  const LossScaleState scale = {loss_scale, 0};
  const DecideArguments arguments = {
      .words = words.data(),
      .parameters = (static_cast<int64_t>(words.size()) - kNonFiniteAt) / 2,
      .world_size = world_size,
      .loss_scale = &scale,
      .max_norm = max_norm,
      .outcome = nullptr};
  int64_t non_finite = 0;
  run_workers(7, [&](Worker thread) { non_finite += non_finite_share(arguments, thread); });
  return decide_body(arguments, non_finite);
}

TEST(Decide, GivesTheNormAndTheFactorOfTheCpu) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> uniform(0.0, 10.0);
  for (int i = 0; i < 1000; ++i) {
    ExactSum sum;
    for (int term = 0; term < 20; ++term) sum.add(std::ldexp(uniform(random), term - 10));
    for (const double max_norm : {0.5, 1e6, kInfiniteNorm}) {
      const double loss_scale = i % 2 == 0 ? 1.0 : 1024.0;
      const double norm = std::sqrt(sum.value()) / loss_scale;
      const StepOutcome outcome = decide(step_words_of(sum), loss_scale, max_norm);
      ASSERT_EQ(outcome.grad_norm, norm);
      ASSERT_EQ(outcome.gradient_scale, clip_factor(norm, max_norm) / loss_scale);
      ASSERT_EQ(outcome.loss_scale, loss_scale);
      ASSERT_EQ(outcome.applies, 1);
    }
  }
}

TEST(Decide, DropsAStepThatIsNotFinite) {
  ExactSum finite;
  finite.add(4.0);
  const StepOutcome counted = decide(step_words_of(finite, 2), 1.0, 1.0);
  EXPECT_EQ(counted.applies, 0);
  EXPECT_EQ(counted.non_finite, 2);
  EXPECT_TRUE(std::isnan(counted.grad_norm));

  ExactSum infinite = finite;
  infinite.add(kInfiniteNorm);
  const StepOutcome mean = decide(step_words_of(infinite), 1.0, 1.0);
  EXPECT_EQ(mean.applies, 0);
  EXPECT_EQ(mean.grad_norm, kInfiniteNorm);
  EXPECT_EQ(mean.gradient_scale, 0.0);
}

TEST(Decide, DropsAStepThatARankRefuses) {
  ExactSum sum;
  sum.add(4.0);
  std::vector<int64_t> words = step_words_of(sum);
  words[static_cast<size_t>(kRefusalsAt)] = 2;
  const StepOutcome outcome = decide(words, 1.0, 1.0, 3);
  EXPECT_EQ(outcome.refusals, 2);
  EXPECT_EQ(outcome.agrees, 1);
  EXPECT_EQ(outcome.applies, 0);
  EXPECT_EQ(outcome.grad_norm, 2.0) << "known all the same";
}

// Whatever the ranks' hashes: the sums of pairs match only if all are equal.
TEST(Decide, SeesEveryDifferenceOfAHash) {
  constexpr int64_t kLargest = (int64_t{1} << kAgreementBits) - 1;
  for (const int64_t ranks : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{kMaxRanks}}) {
    for (int piece = 0; piece < kAgreementPieces; ++piece) {
      for (const int64_t hash : {int64_t{0}, int64_t{1}, kLargest / 3, kLargest - 1}) {
        std::vector<int64_t> words = step_words_of(ExactSum());
        for (int other = 0; other < kAgreementPieces; ++other) {
          const auto at = static_cast<size_t>(kAgreementAt + 2 * other);
          words[at] = ranks * kLargest;
          words[at + 1] = ranks * kLargest * kLargest;
        }
        EXPECT_EQ(decide(words, 1.0, 1.0, ranks).agrees, 1);
        EXPECT_EQ(decide(words, 1.0, 1.0, ranks).applies, 1);
        // One rank has another hash.
        const auto at = static_cast<size_t>(kAgreementAt + 2 * piece);
        words[at] += hash - kLargest;
        words[at + 1] += hash * hash - kLargest * kLargest;
        const StepOutcome outcome = decide(words, 1.0, 1.0, ranks);
        EXPECT_EQ(outcome.agrees, ranks == 1 ? 1 : 0) << ranks << " ranks, piece " << piece;
        EXPECT_EQ(outcome.applies, outcome.agrees);
      }
    }
  }
}

TEST(LossScaleRule, StaysWhereAStepIsRefused) {
  const LossScaleState now = {1024.0, 2};
  const LossScaleRule rule = {2.0, 0.5, 3};
  StepOutcome outcome = {};
  outcome.agrees = 1;
  EXPECT_EQ(loss_scale_body(now, rule, outcome).scale, 512.0);
  outcome.refusals = 1;
  EXPECT_EQ(loss_scale_body(now, rule, outcome).scale, 1024.0);
  EXPECT_EQ(loss_scale_body(now, rule, outcome).good_steps, 2);
  outcome.refusals = 0;
  outcome.agrees = 0;
  EXPECT_EQ(loss_scale_body(now, rule, outcome).scale, 1024.0);
  outcome.agrees = outcome.applies = 1;
  EXPECT_EQ(loss_scale_body(now, rule, outcome).scale, 2048.0);
}

TEST(LossScaleRule, IsTheScalers) {
  const LossScale schedule = {.initial = 1024.0, .growth_interval = 3};
  LossScaler scaler(schedule);
  LossScaleState state = {schedule.initial, 0};
  const LossScaleRule rule = {schedule.growth, schedule.backoff, schedule.growth_interval};
  for (int step = 0; step < 1000; ++step) {
    const bool overflowed = step < 500 ? step % 7 == 0 : step % 2 == 0;
    scaler.update(overflowed);
    state = next_loss_scale(state, rule, overflowed);
    ASSERT_EQ(state.scale, scaler.scale()) << step;
    ASSERT_EQ(state.good_steps, scaler.good_steps()) << step;
  }
}

const std::vector<int64_t> kSteppedNumels = {130, 1, 65, 9001, 64};

/// The device's state between steps.
struct DeviceState {
  std::vector<float> values;
  std::vector<float> moment1;
  std::vector<float> moment2;
  std::vector<int64_t> steps = std::vector<int64_t>(kSteppedNumels.size(), 0);
  std::vector<ParameterUpdate> updates = std::vector<ParameterUpdate>(kSteppedNumels.size());
  LossScaleState loss_scale = {1024.0, 0};
};

struct Job {
  std::vector<Piece> pieces;
  std::vector<int32_t> group_of;
  std::vector<GroupNumbers> groups;
};

/// The launches of one step, in the order of abi.h.
StepOutcome step_on_device(const Job& job, const std::vector<float>& gradient,
                           const std::vector<int64_t>& used, double max_norm, DeviceState& state) {
  const auto pieces = static_cast<int64_t>(job.pieces.size());
  PlainWords words;
  words.words.resize(static_cast<size_t>(step_words(static_cast<int64_t>(kSteppedNumels.size()))),
                     0);
  run_workers(5, [&](Worker block) {
    run_workers(32, [&](Worker group) {
      square_body(gradient.data(), job.pieces.data(), pieces, block, group, SerialLanes(), words);
    });
  });
  exact_normalize(words.words.data());
  PlainWords counts;
  run_workers(5, [&](Worker block) {
    run_workers(77, [&](Worker thread) {
      count_body(gradient.data(), job.pieces.data(), pieces, block, thread, counts);
    });
  });
  std::copy_n(counts.words.begin(), kSteppedNumels.size(), words.words.begin() + kNonFiniteAt);
  const StepOutcome outcome = decide(words.words, state.loss_scale.scale, max_norm);
  const AdvanceArguments advance = {.count = static_cast<int64_t>(kSteppedNumels.size()),
                                    .used = used.data(),
                                    .group_of = job.group_of.data(),
                                    .groups = job.groups.data(),
                                    .outcome = &outcome,
                                    .steps = state.steps.data(),
                                    .updates = state.updates.data()};
  run_workers(3, [&](Worker thread) { advance_body(advance, thread); });
  const UpdateArrays<AdamwRule, float, void> arrays = {
      state.values.data(),
      gradient.data(),
      {state.moment1.data(), state.moment2.data(), nullptr},
      nullptr};
  const std::vector<StatePlaces> places = places_of(job.pieces);
  run_workers(5, [&](Worker block) {
    run_workers(256, [&](Worker thread) {
      update_body(arrays, {job.pieces.data(), places.data(), pieces, state.updates.data()}, block,
                  thread);
    });
  });
  state.loss_scale = loss_scale_body(state.loss_scale, {2.0, 0.5, 3}, outcome);
  return outcome;
}

bool has_bits(const at::Tensor& tensor, const std::vector<float>& values) {
  const float* data = tensor.const_data_ptr<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::bit_cast<uint32_t>(data[i]) != std::bit_cast<uint32_t>(values[i])) return false;
  }
  return tensor.numel() == static_cast<int64_t>(values.size());
}

TEST(StepBodies, TrainAsFlatAdamwWithClippingOverflowAndUnusedParameters) {
  std::vector<NamedTensor> named;
  for (size_t i = 0; i < kSteppedNumels.size(); ++i) {
    named.push_back({std::to_string(i), at::empty({kSteppedNumels[i]}).set_requires_grad(true)});
  }
  const ParameterTable table(std::move(named));
  const OptimizerPlan plan(
      torch::optim::AdamWOptions(1e-2).weight_decay(0.1),
      {{"odd", [](std::string_view name) { return name == "1" || name == "3"; },
        torch::optim::AdamWOptions(3e-3).weight_decay(0).betas({0.8, 0.99})}});
  const std::vector<size_t> group_of = plan.assign(table).value();
  const FlatLayout layout(c10::kFloat, kSteppedNumels, 1);
  const std::vector<Segment> segments = layout.segments({0, layout.numel()});
  const at::Tensor values = at::zeros({layout.numel()}, c10::kFloat);
  const auto optimizer = make_cpu_optimizer(table, plan, group_of, {{values, segments}});
  LossScaler scaler({.initial = 1024.0, .growth_interval = 3});

  Job job = {cut_into_pieces(segments),
             {group_of.begin(), group_of.end()},
             {numbers_of({1e-2, 0.9, 0.999, 1e-8, 0.1}), numbers_of({3e-3, 0.8, 0.99, 1e-8, 0.0})}};
  const auto numel = static_cast<size_t>(layout.numel());
  DeviceState state;
  state.values.assign(numel, 0.0F);
  state.moment1 = state.moment2 = state.values;

  const std::vector<size_t> all = {0, 1, 2, 3, 4};
  std::mt19937_64 random(9);
  std::normal_distribution<float> normal(0.0F, 1024.0F);
  for (int step = 0; step < 8; ++step) {
    const bool overflows = step == 2 || step == 5;
    std::vector<float> gradient(numel, 0.0F);
    for (const Segment& segment : segments) {
      for (int64_t i = 0; i < segment.numel; ++i) {
        gradient[static_cast<size_t>(segment.buffer_offset + i)] = normal(random);
      }
    }
    if (overflows) gradient[260] = std::numeric_limits<float>::infinity();
    std::vector<uint8_t> used(kSteppedNumels.size(), 1);
    used[static_cast<size_t>(step) % kSteppedNumels.size()] = 0;
    const double max_norm = step % 2 == 0 ? 10.0 : kInfiniteNorm;

    const std::vector<int64_t> used_words(used.begin(), used.end());
    const StepOutcome outcome = step_on_device(job, gradient, used_words, max_norm, state);

    const at::Tensor tensor = at::zeros({layout.numel()}, c10::kFloat);
    std::copy(gradient.begin(), gradient.end(), tensor.mutable_data_ptr<float>());
    ExactSum sum;
    for (const Segment& segment : segments) add_squares(tensor, segment, sum);
    const double norm = std::sqrt(sum.value()) / scaler.scale();
    if (!overflows) {
      EXPECT_EQ(outcome.grad_norm, norm);
      optimizer->update(0, tensor, all, used, clip_factor(norm, max_norm) / scaler.scale());
    }
    scaler.update(overflows);

    EXPECT_EQ(outcome.applies, overflows ? 0 : 1);
    EXPECT_TRUE(has_bits(values, state.values)) << "step " << step;
    EXPECT_TRUE(has_bits(optimizer->state(0, 0), state.moment1)) << "step " << step;
    EXPECT_TRUE(has_bits(optimizer->state(0, 1), state.moment2)) << "step " << step;
    for (size_t i = 0; i < kSteppedNumels.size(); ++i) {
      EXPECT_EQ(state.steps[i], optimizer->step_counts()[i]) << i;
    }
    EXPECT_EQ(state.loss_scale.scale, scaler.scale());
  }
  EXPECT_NE(state.values[0], 0.0F) << "something was trained";
}

TEST(StepBodies, NegativeControlAnEarlierStepCountIsNoticed) {
  const AdamHyperParameters group = {1e-2, 0.9, 0.999, 1e-8, 0.1};
  const auto scalars = [&](int64_t step) {
    return adamw_scalars<float>(
        adamw_coefficients(group, power_of(0.9, step), power_of(0.999, step), 1.0));
  };
  const AdamwElement<float> before = {1.0F, 0.5F, 0.25F};
  EXPECT_NE(adamw_element(before, 0.5F, scalars(3)).value,
            adamw_element(before, 0.5F, scalars(4)).value);
}

}  // namespace
}  // namespace tessera::internal::cuda
