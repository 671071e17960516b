// Decisions on the device and how the host reads them, with the fake module on delayed streams.
#include "tessera/optim/cuda/step_decision.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/step/clip_factor.h"
#include "tessera/optim/formulas/loss_scaler.h"
#include "tessera/tests/optim/cuda/host_kit.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal::cuda {
namespace {

using ::testing::HasSubstr;
using testing::HostDevice;

constexpr size_t kParameters = 3;
constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr LossScale kSchedule = {.initial = 1024.0, .growth_interval = 3};

/// One rank's part of the sum.
struct Rank {
  double square = 4.0;
  int64_t refuses = 0;
  std::array<int64_t, kAgreementPieces> hash = {1, 2, 3};
  std::vector<int64_t> non_finite = {0, 0, 0};
  std::vector<int64_t> used = {1, 1, 1};
};

std::vector<int64_t> sum_of(const std::vector<Rank>& ranks) {
  std::vector<int64_t> words(static_cast<size_t>(step_words(kParameters)), 0);
  for (const Rank& rank : ranks) {
    ExactSum squares;
    squares.add(rank.square);
    std::array<int64_t, ExactSum::kWords> own;
    squares.store(own);
    for (size_t i = 0; i < own.size(); ++i) words[i] += own[i];
    words[kRefusalsAt] += rank.refuses;
    for (size_t piece = 0; piece < rank.hash.size(); ++piece) {
      words[kAgreementAt + 2 * piece] += rank.hash[piece];
      words[kAgreementAt + 2 * piece + 1] += rank.hash[piece] * rank.hash[piece];
    }
    for (size_t i = 0; i < kParameters; ++i) {
      words[kNonFiniteAt + i] += rank.non_finite[i];
      words[kNonFiniteAt + kParameters + i] += rank.used[i];
    }
  }
  return words;
}

class StepDecisionTest : public ::testing::Test {
 protected:
  StepDecision make(double max_norm = kNoLimit, std::optional<LossScale> scale = std::nullopt) {
    return StepDecision(kParameters, max_norm, scale, kit_.api(), kit_.device());
  }
  /// A step's decision, as the host reads it.
  StepDecision::Reading decide(StepDecision& decision, const std::vector<Rank>& ranks) {
    const at::Tensor words = kit_.put(sum_of(ranks));
    decision.decide(words, static_cast<int>(ranks.size()));
    decision.start_reading(words);
    return decision.read();
  }
  double scale_of(const StepDecision& decision) {
    return *kit_.get(decision.scale()).const_data_ptr<double>();
  }

  HostKit kit_{std::chrono::microseconds(100)};
};

TEST_F(StepDecisionTest, AppliesAGoodStepOfEveryWorld) {
  for (const size_t world : {1U, 2U, 3U}) {
    StepDecision decision = make();
    std::vector<Rank> ranks(world);
    for (Rank& rank : ranks) rank.used = {1, 0, 0};
    ranks[world - 1].used = {1, 0, 1};
    const StepDecision::Reading reading = decide(decision, ranks);
    EXPECT_EQ(reading.outcome.applies, 1);
    EXPECT_EQ(reading.outcome.grad_norm, std::sqrt(4.0 * static_cast<double>(world)));
    EXPECT_EQ(reading.outcome.gradient_scale, 1.0);
    EXPECT_EQ(reading.outcome.loss_scale, 1.0);
    EXPECT_EQ(reading.scale.scale, 1.0);
    EXPECT_EQ(reading.squares.value(), 4.0 * static_cast<double>(world));
    EXPECT_EQ(reading.used, (std::vector<uint8_t>{1, 0, 1}));
    EXPECT_EQ(reading.non_finite, (std::vector<int64_t>{0, 0, 0}));
    EXPECT_FALSE(reading.refused);
    EXPECT_TRUE(reading.agreed);
    // Where GpuOptimizer::advance() reads it.
    kit_.wait();
    EXPECT_EQ(decision.outcome()->applies, 1);
    EXPECT_EQ(decision.outcome()->grad_norm, reading.outcome.grad_norm);
  }
}

TEST_F(StepDecisionTest, ClipsAsTheCpu) {
  StepDecision decision = make(0.25);
  const StepDecision::Reading reading = decide(decision, {{.square = 7.0}, {.square = 0.3}});
  const double norm = std::sqrt(reading.squares.value());
  EXPECT_EQ(reading.outcome.grad_norm, norm);
  EXPECT_EQ(reading.outcome.gradient_scale, clip_factor(norm, 0.25));
  EXPECT_LT(reading.outcome.gradient_scale, 0.1);
}

TEST_F(StepDecisionTest, DropsAStepThatIsNotFinite) {
  StepDecision decision = make();
  const StepDecision::Reading counted =
      decide(decision, {Rank(), {.non_finite = {0, 5, 0}}, {.non_finite = {1, 2, 0}}});
  EXPECT_EQ(counted.outcome.applies, 0);
  EXPECT_EQ(counted.outcome.non_finite, 8);
  EXPECT_EQ(counted.non_finite, (std::vector<int64_t>{1, 7, 0}));
  EXPECT_TRUE(std::isnan(counted.outcome.grad_norm));
  EXPECT_TRUE(counted.agreed);

  for (const double square : {kNoLimit, std::numeric_limits<double>::quiet_NaN()}) {
    const StepDecision::Reading mean = decide(decision, {Rank(), {.square = square}});
    EXPECT_EQ(mean.outcome.applies, 0) << "no rank had it, the mean has";
    EXPECT_FALSE(std::isfinite(mean.outcome.grad_norm));
    EXPECT_FALSE(std::isfinite(mean.squares.value()));
  }
  // Two finite terms with an infinite sum.
  const double largest = std::numeric_limits<double>::max();
  EXPECT_EQ(decide(decision, {{.square = largest}, {.square = largest}}).outcome.applies, 0);
  EXPECT_EQ(decide(decision, {{.square = largest}}).outcome.applies, 1);
}

TEST_F(StepDecisionTest, DropsAStepThatARankRefuses) {
  StepDecision decision = make();
  const StepDecision::Reading reading = decide(decision, {Rank(), {.refuses = 1}, Rank()});
  EXPECT_EQ(reading.outcome.applies, 0);
  EXPECT_EQ(reading.outcome.refusals, 1);
  EXPECT_TRUE(reading.refused);
  EXPECT_TRUE(reading.agreed);
}

TEST_F(StepDecisionTest, SeesADifferenceInEachPieceOfTheHash) {
  for (size_t piece = 0; piece < kAgreementPieces; ++piece) {
    for (const size_t world : {2U, 3U}) {
      StepDecision decision = make();
      std::vector<Rank> ranks(world);
      EXPECT_TRUE(decide(decision, ranks).agreed);
      ranks[world - 1].hash[piece] += 1;
      const StepDecision::Reading reading = decide(decision, ranks);
      EXPECT_FALSE(reading.agreed) << piece;
      EXPECT_FALSE(reading.refused);
      EXPECT_EQ(reading.outcome.applies, 0);
    }
  }
}

TEST_F(StepDecisionTest, MovesTheLossScaleAsTheScaler) {
  StepDecision decision = make(2.0, kSchedule);
  LossScaler scaler(kSchedule);
  EXPECT_EQ(scale_of(decision), 1024.0);
  for (int step = 0; step < 40; ++step) {
    const bool overflows = step % 9 == 4;
    Rank rank = {.square = 1e6};
    if (overflows) rank.non_finite = {0, 1, 0};
    const StepDecision::Reading reading = decide(decision, {rank});
    EXPECT_EQ(reading.outcome.loss_scale, scaler.scale()) << "that was in force";
    EXPECT_EQ(reading.outcome.applies, overflows ? 0 : 1);
    if (!overflows) {
      const double norm = 1e3 / scaler.scale();
      EXPECT_EQ(reading.outcome.grad_norm, norm);
      EXPECT_EQ(reading.outcome.gradient_scale, clip_factor(norm, 2.0) / scaler.scale());
    }
    scaler.update(overflows);
    EXPECT_EQ(reading.scale.scale, scaler.scale());
    EXPECT_EQ(reading.scale.good_steps, scaler.good_steps());
    EXPECT_EQ(scale_of(decision), scaler.scale());
    // A refused step does not affect the scale.
    const StepDecision::Reading refused = decide(decision, {{.square = 1e6, .refuses = 1}});
    EXPECT_EQ(refused.scale.scale, scaler.scale());
    EXPECT_EQ(refused.scale.good_steps, scaler.good_steps());
  }
  EXPECT_NE(scaler.scale(), 1024.0);
}

TEST_F(StepDecisionTest, GoesOnFromALoadedScale) {
  StepDecision decision = make(kNoLimit, kSchedule);
  decision.load({.scale = 8.0, .good_steps = 2});
  EXPECT_EQ(scale_of(decision), 8.0);
  const StepDecision::Reading reading = decide(decision, {Rank()});
  EXPECT_EQ(reading.outcome.loss_scale, 8.0);
  EXPECT_EQ(reading.scale.scale, 16.0) << "the third good step";
  EXPECT_EQ(decision.scale().dim(), 0);
  EXPECT_EQ(decision.scale().scalar_type(), at::kDouble);
  EXPECT_EQ(decision.scale().device(), kit_.device()->torch_device());
}

TEST_F(StepDecisionTest, TheHostIsAStepBehindAndNoCallWaits) {
  StepDecision decision = make(kNoLimit, kSchedule);
  std::vector<at::Tensor> words;
  words.reserve(4);
  for (int step = 0; step < 4; ++step) {
    words.push_back(kit_.put(sum_of({{.square = step * 1.0, .used = {step % 2, 1, 0}}})));
  }
  const auto queue_step = [&](size_t step) {
    decision.decide(words[step], 1);
    decision.start_reading(words[step]);
    decision.load({.scale = 100.0 + static_cast<double>(step), .good_steps = 0});
  };
  EXPECT_TRUE(kit_.returns_while_device_stands([&] {
    queue_step(0);
    queue_step(1);
  }));
  for (size_t step = 0; step < 4; ++step) {
    EXPECT_EQ(decision.pending(), step < 3 ? 2U : 1U);
    const StepDecision::Reading reading = decision.read();
    EXPECT_EQ(reading.squares.value(), static_cast<double>(step)) << "as it was then";
    EXPECT_EQ(reading.used, (std::vector<uint8_t>{static_cast<uint8_t>(step % 2), 1, 0}));
    EXPECT_EQ(reading.outcome.loss_scale, step == 0 ? 1024.0 : 99.0 + static_cast<double>(step));
    if (step < 2) queue_step(step + 2);
  }
  EXPECT_EQ(decision.pending(), 0U);
}

TEST_F(StepDecisionTest, NegativeControlReadingWaitsForTheDevice) {
  StepDecision decision = make();
  const at::Tensor words = kit_.put(sum_of({Rank()}));
  kit_.wait();
  std::promise<void> gate;
  std::atomic<bool> passed = false;
  HostDevice::run(*kit_.device()->current_stream(), [&, open = gate.get_future().share()] {
    open.wait();
    passed = true;
  });
  decision.decide(words, 1);
  decision.start_reading(words);
  std::promise<void> reads;
  const std::future<void> opener = std::async(std::launch::async, [&] {
    reads.get_future().wait();
    gate.set_value();
  });
  reads.set_value();
  EXPECT_EQ(decision.read().outcome.applies, 1);
  EXPECT_TRUE(passed) << "read() returned what the device had yet to decide";
}

TEST_F(StepDecisionTest, RefusesWhatDoesNotFit) {
  StepDecision decision = make();
  const at::Tensor words = kit_.put(sum_of({Rank()}));
  StepDecision scaled = make(kNoLimit, kSchedule);
  const Settled settled(kit_);
  EXPECT_EQ(testing::message_of([&] { decision.read(); }),
            "[optim] readings: got none, expected one; call start_reading() first");
  decision.start_reading(words);
  decision.start_reading(words);
  EXPECT_EQ(testing::message_of([&] { decision.start_reading(words); }),
            "[optim] readings: got 2 that are not read, expected less than 2; call read() first");
  decision.read();
  EXPECT_EQ(testing::message_of([&] { decision.start_reading(words); }), testing::kNothingThrown);
  EXPECT_EQ(testing::message_of([&] { decision.decide(words.narrow(0, 0, 5), 1); }),
            "[optim] words: got 5 elements, expected the 83 of StepSums::words()");
  EXPECT_EQ(testing::message_of([&] { decision.decide(words, 1025); }),
            "[optim] world size: got 1025, expected 1 to 1024");
  EXPECT_THAT(testing::message_of([&] { decision.scale(); }),
              HasSubstr("[optim] loss scale: got none, expected one; set Options::loss_scale"));
  EXPECT_THAT(testing::message_of([&] {
                decision.load({1.0, 0});
              }),
              HasSubstr("[optim] loss scale: got one to load, expected none; set "
                        "Options::loss_scale"));
  EXPECT_THAT(testing::message_of([&] {
                scaled.load({0.0, 0});
              }),
              HasSubstr("[optim] loss scale: got 0"));
  EXPECT_THAT(testing::message_of([&] { make(kNoLimit, LossScale{.initial = -1.0}); }),
              HasSubstr("[optim] loss_scale.initial: got -1"));
}

TEST_F(StepDecisionTest, NamesWhatTheModuleRefuses) {
  auto broken = std::make_shared<Api>(*kit_.api());
  broken->decide = [](const DecideArguments*, void*) { return kRefusedArgument; };
  StepDecision decision(kParameters, 1.0, std::nullopt, broken, kit_.device());
  const Settled settled(kit_);
  const at::Tensor words = kit_.put(sum_of({Rank()}));
  EXPECT_EQ(testing::message_of([&] { decision.decide(words, 1); }),
            "[cuda] decide: got 'an argument is null, negative or out of range' (-2), expected its "
            "kernel to be queued; see which operator failed before with CUDA_LAUNCH_BLOCKING=1");
}

}  // namespace
}  // namespace tessera::internal::cuda
