#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/distributed_sampler.h"
#include "tessera/tests/data/sampler_ranks.h"

// Every sample is used exactly once, whenever a job is killed and whatever the number of ranks that
// resume.

namespace tessera::internal::testing {
namespace {

using data::Remainder;
using data::SamplerOptions;
using data::SamplerState;

constexpr int kWorlds = 5;

/// What a job has committed when it dies, and its position.
struct Life {
  Samples used;
  SamplerState state;
};

/// Runs `world` ranks from `state`; they die after `steps` steps or end with the epoch.
Life live(const SamplerState& state, int world, const SamplerOptions& options, size_t batch_size,
          int steps) {
  SamplerRanks ranks(state.size, world, options, batch_size, /*ahead=*/3);
  ranks.load(state);
  ranks.begin(state.epoch);
  Life life;
  for (int step = 0; step != steps; ++step) {
    const Samples used = ranks.step();
    if (used.empty()) break;
    life.used.insert(life.used.end(), used.begin(), used.end());
  }
  EXPECT_TRUE(ranks.is_equal_on_ranks() || options.remainder == Remainder::kUneven);
  life.state = SamplerState::from_numbers(ranks.state().numbers());
  return life;
}

/// The value of `used` at the end of an epoch whose last job had `world` ranks and began at
/// `begin`.
Samples expected_at_end(const Samples& order, int64_t begin, int world, Remainder remainder) {
  const auto size = static_cast<int64_t>(order.size());
  const int64_t left = size - begin;
  int64_t end = size;
  if (remainder == Remainder::kPad) end = begin + (left + world - 1) / world * world;
  if (remainder == Remainder::kDrop) end = begin + left / world * world;
  Samples expected;
  for (int64_t i = 0; i < end; ++i) expected.push_back(order[static_cast<size_t>(i % size)]);
  return sorted(expected);
}

class Resume : public ::testing::TestWithParam<Remainder> {};

TEST_P(Resume, Case67_EverySampleExactlyOnceAtAnyWorld) {
  const SamplerOptions options = {.seed = 11, .remainder = GetParam()};
  for (const int64_t size : {1, 2, 3, 5, 8, 13, 31, 50}) {
    const Samples order = order_of(size, 4, options);
    const SamplerState beginning = {.size = size, .seed = options.seed, .epoch = 4};
    for (int first = 1; first <= kWorlds; ++first) {
      for (const size_t batch_size : {1u, 3u, 7u}) {
        for (int steps = 0;; ++steps) {
          const Life before = live(beginning, first, options, batch_size, steps);
          const auto cursor = static_cast<size_t>(before.state.cursor);
          if (before.used.size() <= static_cast<size_t>(size)) {
            // The committed samples are the beginning of the order, except dropped ones.
            ASSERT_EQ(sorted(before.used),
                      sorted({order.begin(), order.begin() + std::min(cursor, before.used.size())}))
                << size << " samples, " << first << " ranks, " << steps << " steps";
          }
          const bool is_at_end = before.state.cursor == size;
          for (int second = 1; second <= kWorlds; ++second) {
            const Life after = live(before.state, second, options, batch_size == 3 ? 2 : 3, -1);
            Samples all = before.used;
            all.insert(all.end(), after.used.begin(), after.used.end());
            if (is_at_end) {
              ASSERT_TRUE(after.used.empty());
              ASSERT_EQ(sorted(all), expected_at_end(order, 0, first, GetParam()));
            } else {
              ASSERT_EQ(sorted(all),
                        expected_at_end(order, before.state.cursor, second, GetParam()))
                  << size << " samples, " << first << " ranks with batches of " << batch_size
                  << " killed after " << steps << " steps, then " << second << " ranks";
            }
          }
          if (is_at_end || live(beginning, first, options, batch_size, steps + 1).used.size() ==
                               before.used.size()) {
            break;
          }
        }
      }
    }
  }
}

TEST_P(Resume, TheSameWorldTakesTheSameBatches) {
  const SamplerOptions options = {.seed = 2, .remainder = GetParam()};
  for (const int64_t size : {7, 31}) {
    for (int world = 1; world <= kWorlds; ++world) {
      const SamplerState beginning = {.size = size, .seed = 2};
      const Samples straight = live(beginning, world, options, 2, -1).used;
      for (int steps = 0; steps < 8; ++steps) {
        const Life before = live(beginning, world, options, 2, steps);
        const Life after = live(before.state, world, options, 2, -1);
        Samples all = before.used;
        all.insert(all.end(), after.used.begin(), after.used.end());
        EXPECT_EQ(all, straight) << size << " samples, " << world << " ranks, " << steps
                                 << " steps";
      }
    }
  }
}

// Four jobs of other sizes, each with another batch size and two batches per step.
TEST_P(Resume, SurvivesManyKillsWithAccumulation) {
  const SamplerOptions options = {.seed = 6, .remainder = GetParam()};
  constexpr int64_t kSize = 47;
  const Samples order = order_of(kSize, 0, options);
  SamplerState state = {.size = kSize, .seed = 6};
  Samples all;
  int64_t begin = 0;
  int last = 0;
  for (const int world : {4, 3, 1, 5, 2}) {
    SamplerRanks ranks(kSize, world, options,
                       /*batch_size=*/world == 5 ? 1 : static_cast<size_t>(1 + world % 2), 2);
    ranks.load(state);
    ranks.begin(state.epoch);
    begin = state.cursor;
    last = world;
    for (int step = 0; step < (world == 2 ? 100 : 1); ++step) {
      const Samples used = ranks.step(/*batches=*/2);
      all.insert(all.end(), used.begin(), used.end());
    }
    state = ranks.state();
  }
  EXPECT_EQ(sorted(all), expected_at_end(order, begin, last, GetParam()));
}

// A loop over epochs that is killed after any step, even the last one of an epoch.
TEST_P(Resume, EpochsFollowEachOther) {
  const SamplerOptions options = {.seed = 8, .remainder = GetParam()};
  constexpr int64_t kSize = 13;
  constexpr int64_t kEpochs = 3;
  const auto run = [&](SamplerState state, int world, int steps, std::vector<Samples>& epochs) {
    SamplerRanks ranks(kSize, world, options, 2, 2);
    ranks.load(state);
    for (int64_t epoch = state.epoch; epoch < kEpochs; ++epoch) {
      ranks.begin(epoch);
      for (;;) {
        if (steps-- == 0) return ranks.state();
        const Samples used = ranks.step();
        if (used.empty()) break;
        Samples& all = epochs[static_cast<size_t>(epoch)];
        all.insert(all.end(), used.begin(), used.end());
      }
      ++steps;  // the end is not a step
    }
    return ranks.state();
  };
  for (int steps = 0; steps <= 10; ++steps) {
    std::vector<Samples> epochs(kEpochs);
    const SamplerState killed = run({.size = kSize, .seed = 8}, 2, steps, epochs);
    run(killed, 3, -1, epochs);
    for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      const bool was_whole =
          epoch < killed.epoch || (epoch == killed.epoch && killed.cursor == kSize);
      const int64_t begin = epoch == killed.epoch && !was_whole ? killed.cursor : 0;
      EXPECT_EQ(
          sorted(epochs[static_cast<size_t>(epoch)]),
          expected_at_end(order_of(kSize, epoch, options), begin, was_whole ? 2 : 3, GetParam()))
          << "epoch " << epoch << ", killed after " << steps << " steps";
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<Remainder>& info) {
  if (info.param == Remainder::kPad) return "Pad";
  return info.param == Remainder::kDrop ? "Drop" : "Uneven";
}

INSTANTIATE_TEST_SUITE_P(All, Resume,
                         ::testing::Values(Remainder::kPad, Remainder::kDrop, Remainder::kUneven),
                         name_of);

}  // namespace
}  // namespace tessera::internal::testing
