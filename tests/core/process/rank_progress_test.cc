#include "tessera/core/process/rank_progress.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/support/patience.h"

namespace tessera::internal {
namespace {

using ::testing::ElementsAre;

/// As the page has it: zeros.
struct Memory {
  alignas(RankProgress) unsigned char bytes[sizeof(RankProgress)] = {};
  RankProgress& progress = *reinterpret_cast<RankProgress*>(bytes);
};

TEST(RankProgress, ZerosAreARankThatHasSaidNothing) {
  Memory memory;
  EXPECT_EQ(memory.progress.life_ns(), 0);
  EXPECT_EQ(memory.progress.phase(), Phase::kOther);
  EXPECT_EQ(memory.progress.step(), 0);
  EXPECT_EQ(memory.progress.pace().last_step_ns, 0);
  EXPECT_FALSE(memory.progress.wait().has_value());
}

TEST(RankProgress, LifeIsAsOldAsTheLastThingSaid) {
  Memory memory;
  const int64_t before = coarse_monotonic_ns();
  memory.progress.note_life();
  EXPECT_GE(memory.progress.life_ns(), before);
  EXPECT_LE(memory.progress.life_ns(), monotonic_ns());
  memory.progress.note_rest();
  EXPECT_EQ(memory.progress.life_ns(), 0);
}

TEST(RankProgress, AWaitIsReadAsItWasWritten) {
  Memory memory;
  memory.progress.note_wait(17, "barrier #2 on group 'world'", "world", 2, {1, 5});
  const auto wait = memory.progress.wait();
  ASSERT_TRUE(wait.has_value());
  EXPECT_EQ(wait->since_ns, 17);
  EXPECT_EQ(wait->call, "barrier #2 on group 'world'");
  EXPECT_EQ(wait->group, "world");
  EXPECT_EQ(wait->number, 2);
  EXPECT_THAT(wait->ranks, ElementsAre(1, 5));
  EXPECT_EQ(wait->awaited, 2);
  memory.progress.note_wait_end();
  EXPECT_FALSE(memory.progress.wait().has_value());
}

TEST(RankProgress, WhatIsTooLongIsCut) {
  Memory memory;
  std::vector<int> ranks(4095);
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i) + 1;
  memory.progress.note_wait(1, std::string(5000, 'c'), std::string(5000, 'g'), -1, ranks);
  const auto wait = memory.progress.wait();
  ASSERT_TRUE(wait.has_value());
  EXPECT_EQ(wait->call, std::string(168, 'c'));
  EXPECT_EQ(wait->group, std::string(64, 'g'));
  EXPECT_THAT(wait->ranks, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(wait->awaited, 4095);
}

TEST(RankProgress, TextIsAsATerminalMayShowIt) {
  Memory memory;
  memory.progress.note_wait(1, "a\033[2Jb\n\xff", std::string_view("g\0h", 3), 0, {});
  EXPECT_EQ(memory.progress.wait()->call, "a?[2Jb??");
  EXPECT_EQ(memory.progress.wait()->group, "g");
}

TEST(RankProgress, AnyBytesAreReadWithinBounds) {
  uint64_t random = 1;
  for (int round = 0; round < 2000; ++round) {
    Memory memory;
    for (unsigned char& byte : memory.bytes) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      byte = round == 0 ? 0xff : static_cast<unsigned char>(random >> 56);
    }
    const auto wait = memory.progress.wait();
    if (wait) {
      EXPECT_LE(wait->call.size(), 168u);
      EXPECT_LE(wait->ranks.size(), LongWait::kRanks);
      EXPECT_GE(wait->awaited, static_cast<int64_t>(wait->ranks.size()));
    }
    const Pace pace = memory.progress.pace();
    EXPECT_GE(pace.seconds_per_step, 0);
    EXPECT_GE(pace.own_seconds_per_step.value_or(0), 0);
    EXPECT_LE(static_cast<int>(memory.progress.phase()), static_cast<int>(Phase::kSaving));
  }
}

/// A writer that is stopped in the middle, for ever: the version stays odd.
TEST(RankProgress, AReaderDoesNotWaitForAWriter) {
  Memory memory;
  memory.progress.note_wait(1, "c", "g", 0, {});
  ASSERT_TRUE(memory.progress.wait().has_value());
  bool is_found = false;  // the word that says so
  for (size_t at = 0; at + sizeof(uint64_t) <= sizeof(memory.bytes) && !is_found; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, memory.bytes + at, sizeof(word));
    if (word != 2) continue;
    const uint64_t odd = 3;
    std::memcpy(memory.bytes + at, &odd, sizeof(odd));
    is_found = true;
  }
  ASSERT_TRUE(is_found);
  EXPECT_FALSE(memory.progress.wait().has_value());
  memory.progress.note_wait(1, "the next one", "g", 0, {});
  EXPECT_EQ(memory.progress.wait()->call, "the next one");
}

TEST(RankProgress, TextIsNeverTorn) {
  Memory memory;
  std::atomic<bool> ends{false};
  std::thread writer([&] {
    for (int64_t i = 1; !ends; ++i) {
      const std::string text(160, static_cast<char>('a' + i % 26));
      memory.progress.note_wait(i, text, text.substr(0, 60), i, {static_cast<int>(i)});
    }
  });
  const auto deadline = std::chrono::steady_clock::now() + testing::kPatience;
  for (int seen = 0; seen < 2000 && std::chrono::steady_clock::now() < deadline;) {
    const auto wait = memory.progress.wait();
    if (!wait) continue;
    ++seen;
    const char letter = static_cast<char>('a' + wait->since_ns % 26);
    ASSERT_EQ(wait->call, std::string(160, letter));
    ASSERT_EQ(wait->group, std::string(60, letter));
    ASSERT_EQ(wait->number, wait->since_ns);
    ASSERT_THAT(wait->ranks, ElementsAre(static_cast<int>(wait->since_ns)));
  }
  ends = true;
  writer.join();
}

TEST(RankProgress, ThePaceIsThatOfTheLastSteps) {
  Memory memory;
  RankProgress& progress = memory.progress;
  progress.note_step_end(0);
  EXPECT_GT(progress.pace().last_step_ns, 0);
  EXPECT_EQ(progress.pace().seconds_per_step, 0) << "one end says nothing of how long a step takes";
  const int64_t begin_ns = progress.pace().last_step_ns;
  for (int i = 0; i < 14; ++i) progress.note_step_end(0);
  const Pace pace = progress.pace();
  EXPECT_DOUBLE_EQ(pace.seconds_per_step,
                   static_cast<double>(pace.last_step_ns - begin_ns) / 14 / 1e9);
  EXPECT_DOUBLE_EQ(pace.own_seconds_per_step.value(), pace.seconds_per_step);
  for (int i = 0; i < 100; ++i) progress.note_step_end(0);
  EXPECT_LT(progress.pace().seconds_per_step * 14,
            static_cast<double>(progress.pace().last_step_ns - begin_ns) / 1e9)
      << "what lies further back is forgotten";
}

TEST(RankProgress, OwnTimeIsKnownWhereWaitsAreSeenAndMakeSense) {
  Memory unseen;
  unseen.progress.note_step_end(-1);
  unseen.progress.note_step_end(-1);
  EXPECT_FALSE(unseen.progress.pace().own_seconds_per_step.has_value());
  Memory absurd;
  absurd.progress.note_step_end(5);
  absurd.progress.note_step_end(3600'000'000'000);
  EXPECT_GT(absurd.progress.pace().seconds_per_step, 0);
  EXPECT_FALSE(absurd.progress.pace().own_seconds_per_step.has_value())
      << "more than there was time for";
}

}  // namespace
}  // namespace tessera::internal
