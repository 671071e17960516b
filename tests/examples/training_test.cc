#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <set>

#include "tessera/examples/gpt/batches.h"
#include "tessera/examples/gpt/flags.h"
#include "tessera/examples/gpt/generate.h"
#include "tessera/examples/gpt/progress.h"
#include "tessera/examples/gpt/rate_curve.h"
#include "tessera/examples/gpt/windows.h"

namespace gpt {
namespace {

using ::testing::HasSubstr;

at::Tensor counting(int64_t n) { return at::arange(n, at::kByte); }

TEST(Windows, TargetIsTheTextOneByteLater) {
  const Windows windows(counting(14), 4);
  EXPECT_EQ(windows.size(), 3);
  const Batch batch = windows.batch({2, 0});
  EXPECT_TRUE(at::equal(batch.text[0], at::arange(8, 12, at::kLong)));
  EXPECT_TRUE(at::equal(batch.target[0], at::arange(9, 13, at::kLong)));
  EXPECT_TRUE(at::equal(batch.text[1], at::arange(0, 4, at::kLong)));
}

/// The first bytes of all windows in `steps` batches.
std::multiset<int64_t> seen(Batches& batches, int steps) {
  std::multiset<int64_t> result;
  for (int step = 0; step < steps; ++step) {
    const at::Tensor first = batches.next().text.select(1, 0);
    for (int64_t i = 0; i < first.size(0); ++i) result.insert(first[i].item<int64_t>());
  }
  return result;
}

TEST(Batches, RanksSeeEachWindowOnceAnEpoch) {
  const Windows windows(counting(4 * 12 + 1), 4);
  ASSERT_EQ(windows.size(), 12);
  std::multiset<int64_t> all;
  for (int rank = 0; rank < 3; ++rank) {
    Batches batches(windows, 2, rank, 3);
    all.merge(seen(batches, 2));
    EXPECT_EQ(batches.epoch(), 0);
  }
  EXPECT_EQ(all.size(), 12u);
  EXPECT_EQ(std::set<int64_t>(all.begin(), all.end()).size(), 12u);
}

TEST(Batches, DrawANewOrderInEachEpoch) {
  Batches batches(Windows(counting(4 * 50 + 1), 4), 50, 0, 1);
  const at::Tensor first = batches.next().text.clone();
  const at::Tensor second = batches.next().text;
  EXPECT_EQ(batches.epoch(), 1);
  EXPECT_FALSE(at::equal(first, second));
}

TEST(Batches, RefuseMoreSequencesThanThereAre) {
  const Windows windows(counting(4 * 12 + 1), 4);
  EXPECT_THAT([&] { Batches(windows, 5, 0, 3); },
              ::testing::ThrowsMessage<c10::Error>(
                  HasSubstr("[gpt] sequences: got 5 per batch and rank, expected 1 to 4")));
}

TEST(RateCurve, RisesThenFallsToTheFloor) {
  const RateCurve curve{.peak = 1.0, .floor = 0.1, .warmup_steps = 4, .steps = 15};
  EXPECT_DOUBLE_EQ(curve.at(0), 0.25);
  EXPECT_DOUBLE_EQ(curve.at(3), 1.0);
  EXPECT_DOUBLE_EQ(curve.at(4), 1.0);
  EXPECT_DOUBLE_EQ(curve.at(9), 0.55);
  EXPECT_DOUBLE_EQ(curve.at(14), 0.1);
  EXPECT_DOUBLE_EQ(curve.at(1000), 0.1);
}

TEST(RateCurve, WithoutWarmUpAndForOneStep) {
  const RateCurve curve{.peak = 1.0, .floor = 0.1, .warmup_steps = 0, .steps = 1};
  EXPECT_DOUBLE_EQ(curve.at(0), 1.0);
}

TEST(Generate, RepeatsItselfForOneSeedAndContinuesThePrompt) {
  torch::manual_seed(1);
  Gpt model({.layers = 1, .heads = 1, .width = 8, .context = 4});
  const Sampling sampling{.new_bytes = 20, .temperature = 1.0, .seed = 3};
  const std::string text = generate(model, "prompt longer than the context", sampling);
  EXPECT_EQ(text.size(), 50u);
  EXPECT_EQ(text.substr(0, 30), "prompt longer than the context");
  EXPECT_EQ(generate(model, "prompt longer than the context", sampling), text);
  Sampling other = sampling;
  other.seed = 4;
  EXPECT_NE(generate(model, "prompt longer than the context", other), text);
  EXPECT_EQ(generate(model, "", sampling).size(), 20u);
}

TEST(Generate, LeavesTheGeneratorOfTrainingAlone) {
  Gpt model({.layers = 1, .heads = 1, .width = 8, .context = 4});
  torch::manual_seed(5);
  const at::Tensor expected = at::rand({3});
  torch::manual_seed(5);
  generate(model, "a", {.new_bytes = 4, .temperature = 1.0});
  EXPECT_TRUE(at::equal(at::rand({3}), expected));
}

TEST(Printable, EscapesWhatCommandsATerminal) {
  EXPECT_EQ(printable("a\tb\n\x1b[2J\xff"), "a\tb\n\\x1b[2J\\xff");
}

TEST(ProgressLine, SaysLossSpeedMemoryAndTimeLeft) {
  const ProgressLine line{.step = 20,
                          .steps = 400,
                          .loss = 2.34567,
                          .rate = 1e-3,
                          .tokens_per_s = 12345.6,
                          .pss_bytes = int64_t{210} << 20,
                          .left_s = 65.4};
  EXPECT_EQ(line.text(), "step  20/400  loss 2.3457  lr 1.00e-03  12346 tok/s  210 MiB  left 1:05");
  EXPECT_LT(line.text().size(), 80u);  // a line that wraps cannot be redrawn
}

std::string reported(Progress::Display display, int64_t steps) {
  std::FILE* file = std::tmpfile();
  Progress progress(file, display, {.steps = steps, .tokens_per_step = 1, .log_every = 4});
  for (int64_t step = 1; step <= steps; ++step) progress.report(step, 1.0, 0.1);
  std::rewind(file);
  std::string text(1 << 16, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

TEST(Progress, PrintsPlainLinesWhereThereIsNoTerminal) {
  const std::string text = reported(Progress::Display::kLines, 10);
  for (const char* step : {"step  1/10", "step  4/10", "step  8/10", "step 10/10"}) {
    EXPECT_THAT(text, HasSubstr(step));
  }
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 0);
}

TEST(Progress, RedrawsOneLineOnATerminal) {
  const std::string text = reported(Progress::Display::kTerminal, 10);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(text.back(), '\n');
  EXPECT_GE(std::count(text.begin(), text.end(), '\r'), 2);
}

Flags good_flags() {
  Flags flags;
  flags.data_bytes = 1;
  flags.batch = flags.accumulate = flags.log_every = flags.powersgd_rank = 1;
  return flags;
}

TEST(Flags, ListsEveryValueOutOfRange) {
  EXPECT_TRUE(validate(good_flags()).ok());
  Flags flags = good_flags();
  flags.model.width = 10;
  flags.batch = 0;
  flags.rate.peak = -1.0;
  flags.options.max_grad_norm = -2.0;
  flags.options.strategy = tessera::Strategy::kHybrid;
  flags.no_sync = true;
  const std::string message(validate(flags).message());
  EXPECT_THAT(message, HasSubstr("[gpt] --width: got 10, expected a multiple of --heads 4"));
  EXPECT_THAT(message, HasSubstr("[gpt] --batch: got 0, expected 1 to 1048576"));
  EXPECT_THAT(message, HasSubstr("[gpt] --lr: got -1, expected 0 or more"));
  EXPECT_THAT(message, HasSubstr("[options] max_grad_norm: got -2"));
  EXPECT_THAT(message, HasSubstr("[options] degrees: got none; strategy hybrid needs them"));
  EXPECT_THAT(message, HasSubstr("[gpt] --no_sync: got --accumulate 1"));
}

}  // namespace
}  // namespace gpt
