#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <torch/torch.h>

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/tests/fsdp/gatherer.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/forked_child.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/patience.h"
#include "tessera/tests/support/watched_window.h"

// When units are gathered and freed: order, memory and bytes. Names with a number are scenarios of
// docs/testing.md.

namespace tessera::internal::testing {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int kBlocks = 7;  // of the model Blocks; everything else is the root unit

// --- How often ---

/// fully_shard gathers blocks + 1 times in forward and blocks times in backward. Here the block
/// that is whole when forward ends stays so for backward, and the root stays whole for both.
TEST(GatheredUnits, Scenario43_CollectiveCountsPerPass) {
  on_gatherers(3, blocks_configuration(), [](Gatherer& rank) {
    rank.gathers();
    for (int step = 0; step < 3; ++step) {
      const at::Tensor loss = rank.loss(step);
      EXPECT_EQ(rank.gathers(), kBlocks + 1);
      loss.backward();
      EXPECT_EQ(rank.gathers(), kBlocks - 1);
      rank.recording->clear();
      rank.engine->step();
      EXPECT_EQ(rank.gathers(), 0);
      EXPECT_EQ(rank.recording->count("read"), 0);
      EXPECT_EQ(rank.recording->count("reduce_scatter"), 0) << "reductions belong to backward";
    }
  });
}

TEST(GatheredUnits, Scenario43_UnitsThatStayWholeAreGatheredOncePerStep) {
  on_gatherers(3, blocks_configuration(1), [](Gatherer& rank) {
    rank.gathers();
    for (int step = 0; step < 3; ++step) {
      const at::Tensor loss = rank.loss(step);
      EXPECT_EQ(rank.gathers(), kBlocks + 1);
      loss.backward();
      EXPECT_EQ(rank.gathers(), 0);
      rank.engine->step();
    }
  });
}

TEST(GatheredUnits, Scenario43_EachMicroStepGathersAndReduces) {
  for (const bool is_local : {false, true}) {
    on_gatherers(3, blocks_configuration(), [is_local](Gatherer& rank) {
      rank.recording->clear();
      rank.gathers();
      for (int micro = 0; micro < 3; ++micro) {
        std::optional<Engine::NoSync> no_sync;
        if (is_local && micro < 2) no_sync.emplace(rank.engine->no_sync());
        rank.loss(micro).backward();
        EXPECT_EQ(rank.gathers(), 2 * kBlocks);
        const int64_t reduced = is_local ? (micro < 2 ? 0 : 1) : micro + 1;
        EXPECT_EQ(rank.recording->count("reduce_scatter"), reduced * (kBlocks + 1));
      }
      rank.engine->step();
    });
  }
}

TEST(GatheredUnits, Scenario43_EvaluationGathersEachUnitOnce) {
  on_gatherers(3, blocks_configuration(), [](Gatherer& rank) {
    rank.train(0);
    rank.gathers();
    rank.evaluate(1);
    EXPECT_EQ(rank.gathers(), kBlocks + 1);
  });
}

// --- In which order ---

std::vector<std::string> blocks_down_from(int last) {
  std::vector<std::string> names;
  for (int i = last; i >= 0; --i) names.push_back(absl::StrCat("blocks.", i));
  return names;
}

TEST(GatheredUnits, Scenario44_OrderFollowsTheModelAndPrefetchingDoesNotChangeIt) {
  for (const bool prefetch : {false, true}) {
    Configuration configuration = blocks_configuration();
    configuration.prefetch = prefetch;
    on_gatherers(2, configuration, [prefetch](Gatherer& rank) {
      std::vector<std::string> forward = {"root"};
      for (int i = 0; i < kBlocks; ++i) forward.push_back(absl::StrCat("blocks.", i));
      for (int step = 0; step < 4; ++step) {
        rank.gathered();
        const at::Tensor loss = rank.loss(step);
        if (!prefetch || step == 0) {
          EXPECT_THAT(rank.gathered(), ElementsAreArray(forward));
        }
        rank.gathered();
        loss.backward();
        if (!prefetch || step == 0) {
          EXPECT_THAT(rank.gathered(), ElementsAreArray(blocks_down_from(kBlocks - 2)));
        }
        rank.engine->step();
      }
      const GatherCounts counts = rank.engine->gather_counts();
      if (prefetch) {
        EXPECT_GT(counts.prefetched, counts.gathers / 2);
      } else {
        EXPECT_EQ(counts.prefetched, 0);
      }
    });
  }
}

/// Branches change between steps, so prefetches go wrong: wrongly prefetched units are dropped, and
/// no old values are used.
TEST(GatheredUnits, Scenario44_ADynamicGraphLeavesNoStaleGather) {
  for (const std::string model : {"BranchingBlocks", "Branches", "RankOrder"}) {
    Configuration prefetching = apart(configuration_of(Strategy::kZero3));
    prefetching.prefetch = true;
    prefetching.poison_freed = true;
    Schedule schedule = schedules().front();
    schedule.steps = 8;
    const auto check = [](Engine& engine, int) {
      const GatherCounts counts = engine.gather_counts();
      EXPECT_EQ(counts.gathers, counts.frees) << "a unit is still whole after the step";
    };
    const Outcome got = train_on_threads(subject(model), at::kFloat, prefetching, schedule, 3,
                                         {.after_step = check});
    const Outcome expected =
        train_on_threads(subject(model), at::kFloat, configuration_of(Strategy::kDdp), schedule, 3);
    EXPECT_EQ(bit_differences(got, expected), "") << model;
  }
}

/// Once armed, delays a read of one unit from another rank until a read of a second unit has begun.
class HeldReads {
 public:
  HeldReads(std::string held, std::string until)
      : held_(std::move(held)), until_(std::move(until)) {}

  void arm() { is_armed_ = true; }
  void await_held() { EXPECT_EQ(is_held_.get_future().wait_for(kPatience), kReady); }
  bool have_met() const { return has_begun_.wait_for(std::chrono::seconds(0)) == kReady; }

  void note(std::string_view unit) {
    if (!is_armed_) return;
    if (unit == until_ && !is_noted_.exchange(true)) begun_.set_value();
    if (unit == held_) {
      if (!has_held_.exchange(true)) is_held_.set_value();
      EXPECT_EQ(has_begun_.wait_for(kPatience), kReady) << until_ << " waits for " << held_;
    }
  }

 private:
  static constexpr auto kReady = std::future_status::ready;

  const std::string held_, until_;
  std::promise<void> begun_;
  const std::shared_future<void> has_begun_{begun_.get_future()};
  std::promise<void> is_held_;
  std::atomic<bool> is_armed_{false};
  std::atomic<bool> is_noted_{false};
  std::atomic<bool> has_held_{false};
};

/// A group whose reads of other ranks' memory are delayed by HeldReads.
class HeldReadsGroup final : public ForwardingGroup {
 public:
  HeldReadsGroup(std::shared_ptr<ProcessGroup> inner, std::shared_ptr<HeldReads> reads)
      : ForwardingGroup(std::move(inner)), reads_(std::move(reads)) {}

  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override {
    const auto before = [reads = reads_, own_rank = rank()](int from, const at::Tensor& /*to*/,
                                                            std::string_view unit) {
      if (from != own_rank) reads->note(unit);
    };
    return std::make_unique<WatchedWindow>(inner_->make_window(own, name), before);
  }

 protected:
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override {
    return std::make_shared<HeldReadsGroup>(std::move(inner), reads_);
  }

 private:
  const std::shared_ptr<HeldReads> reads_;
};

/// A slow link gets the next unit's read right after the present one's; two buffers are enough.
TEST(GatheredUnits, TheNextUnitIsAskedForBeforeThePresentOneHasCome) {
  for (const bool is_backward : {false, true}) {
    Configuration configuration = blocks_configuration();
    configuration.prefetch = true;
    configuration.fixed_unsharded_buffers = true;
    run_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
      const auto reads =
          std::make_shared<HeldReads>("blocks.3", is_backward ? "blocks.2" : "blocks.4");
      const Gatherer rank(std::make_shared<HeldReadsGroup>(std::move(group), reads), configuration);
      for (int step = 0; step < 2; ++step) rank.train(step);
      if (!is_backward) reads->arm();
      const at::Tensor loss = rank.loss(2);
      reads->arm();
      EXPECT_EQ(reads->have_met(), !is_backward);
      loss.backward();
      EXPECT_TRUE(reads->have_met());
      rank.engine->step();
    });
  }
}

/// In the child the lock stays held by a thread that does not exist there.
TEST(GatheredUnits, AChildThatIsForkedWhileAnotherThreadGathersDoesNotWait) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    const auto reads = std::make_shared<HeldReads>("blocks.3", "the child has ended");
    const Gatherer rank(std::make_shared<HeldReadsGroup>(std::move(group), reads),
                        blocks_configuration());
    rank.train(0);
    if (rank.world->rank() == 0) {
      reads->arm();
      std::thread reader([&] { rank.evaluate(1); });
      reads->await_held();
      const ForkedChild child = run_in_fork([&] {
        return absl::StrCat(message_of([&] { (void)rank.engine->gather_counts(); }), "\n",
                            message_of([&] { rank.engine->step(); }), "\n",
                            message_of([&] { (void)rank.engine->full_parameters(); }));
      });
      reads->note("the child has ended");
      reader.join();
      EXPECT_EQ(child.exit_code, 0) << child.text;
      EXPECT_THAT(absl::StrSplit(child.text, '\n'),
                  ::testing::Each(HasSubstr("this process is a fork of rank 0")));
    }
    rank.train(1);
  });
}

// --- In how much memory ---

TEST(GatheredUnits, TwoBuffersAreEnoughForAChainOfBlocks) {
  for (const bool prefetch : {false, true}) {
    Configuration configuration = blocks_configuration();
    configuration.fixed_unsharded_buffers = true;
    configuration.prefetch = prefetch;
    on_gatherers(3, configuration, [](Gatherer& rank) {
      for (int step = 0; step < 3; ++step) rank.train(step);
      EXPECT_EQ(rank.engine->gather_counts().unsharded_buffers_added, 0);
      EXPECT_EQ(rank.engine->memory().now()[MemoryClass::kUnshardedParameters],
                2 * rank.engine->units()[0].layout.bytes());
    });
  }
}

/// Also if the last operator has left a unit in a buffer.
TEST(GatheredUnits, AScopeKeepsNoBuffer) {
  on_gatherers(2, blocks_configuration(), [](Gatherer& rank) {
    const int64_t unit_bytes = rank.engine->units()[0].layout.bytes();
    const auto whole = [&] {
      return rank.engine->memory().now()[MemoryClass::kUnshardedParameters] / unit_bytes;
    };
    rank.evaluate(0);
    {
      const auto scope = rank.engine->gather(*rank.net);
      EXPECT_EQ(whole(), 2 + kBlocks);
    }
    EXPECT_EQ(whole(), 2);
    rank.train(0);
    const GatherCounts counts = rank.engine->gather_counts();
    EXPECT_EQ(counts.gathers, counts.frees);
  });
}

/// An operator that reads three units needs three buffers.
TEST(GatheredUnits, MoreBuffersAreCountedOnceAndKept) {
  on_gatherers(
      3, apart(configuration_of(Strategy::kZero3)),
      [](Gatherer& rank) {
        EXPECT_EQ(rank.engine->gather_counts().unsharded_buffers_added, 0);
        rank.train(0);
        const int64_t grown = rank.engine->gather_counts().unsharded_buffers_added;
        EXPECT_GE(grown, 1);
        for (int step = 1; step < 4; ++step) rank.train(step);
        EXPECT_EQ(rank.engine->gather_counts().unsharded_buffers_added, grown);
      },
      "ThreeUnits");
}

TEST(GatheredUnits, MoreBuffersAreAnErrorInStrictMode) {
  Configuration configuration = apart(configuration_of(Strategy::kZero3));
  configuration.fixed_unsharded_buffers = true;
  on_gatherers(
      3, configuration,
      [](Gatherer& rank) {
        EXPECT_THAT([&] { rank.loss(0); },
                    ThrowsMessage<c10::Error>(::testing::AllOf(
                        HasSubstr("[fsdp] unit '"), HasSubstr("no free unsharded-parameter buffer"),
                        HasSubstr("wrap policy"), HasSubstr("fixed_unsharded_buffers"))));
      },
      "ThreeUnits");
}

// --- With how many bytes ---

/// The bytes that windows read from other ranks equal those of the trace's gathers.
TEST(GatheredUnits, TrafficIsTheTraceTimesTheShareOfOthers) {
  for (Configuration configuration : {blocks_configuration(), blocks_configuration(1),
                                      apart(configuration_of(Strategy::kZero3))}) {
    for (const int size : {1, 2, 3, 4}) {
      for (const bool prefetch : {false, true}) {
        configuration.prefetch = prefetch;
        on_gatherers(size, configuration, [size](Gatherer& rank) {
          for (int step = 0; step < 3; ++step) rank.train(step);
          rank.evaluate(3);
          int64_t gathered_bytes = 0;
          for (const Trace::Span& span : trace_of(*rank.engine)->spans()) {
            if (span.track == TraceTrack::kGather) gathered_bytes += span.bytes;
          }
          EXPECT_EQ(rank.recording->sent_bytes("read"),
                    static_cast<double>(gathered_bytes / size * (size - 1)));
          EXPECT_EQ(rank.recording->sent_bytes("read"),
                    static_cast<double>(rank.engine->gather_counts().bytes));
        });
      }
    }
  }
}

/// At most three times the parameters per step: forward, backward, reduction. The last block and
/// the root are gathered once.
TEST(GatheredUnits, OneStepMovesThreeTimesTheParametersAtMost) {
  on_gatherers(3, blocks_configuration(), [](Gatherer& rank) {
    rank.train(0);
    rank.recording->clear();
    rank.train(1);
    double share = 0;
    double saved = 0;
    for (const PlannedUnit& unit : rank.engine->units()) {
      const double bytes = static_cast<double>(unit.layout.bytes()) * 2 / 3;
      share += bytes;
      if (unit.kind == UnitKind::kRoot || unit.name == "blocks.6") saved += bytes;
    }
    EXPECT_DOUBLE_EQ(rank.recording->sent_bytes("read"), 2 * share - saved);
    EXPECT_DOUBLE_EQ(rank.recording->sent_bytes("reduce_scatter"), share);
  });
}

}  // namespace
}  // namespace tessera::internal::testing
