#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <absl/strings/str_cat.h>
#include <torch/torch.h>

#include "tessera/core/numbers/exact_sum.h"
#include "tessera/parallelize.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/recording_group.h"
#include "tessera/tests/support/training.h"

// Compares each configuration's calls with the formula of the layout: 2 P per step if all is
// replicated, P in and P out if it is sharded, plus small agreements that are named here. Reads by
// gathers are tested in tests/fsdp/gathered_units_test.cc.

namespace tessera::internal::testing {
namespace {

using Lines = std::vector<std::string>;

constexpr int64_t kSmallBucketBytes = 1024;
constexpr int kMicroSteps = 3;

/// The expected calls of one training loop, computed from the layout alone.
class Formula {
 public:
  Formula(const Engine& engine, const Configuration& configuration, int groups, int size)
      : table_(engine.parameters()),
        plan_(engine.units()),
        is_sharded_(engine.degrees().optimizer > 1),
        splits_parameters_(engine.degrees().parameters > 1),
        shares_(configuration.shares_at(size)),
        gathers_updates_(is_sharded_ && !splits_parameters_ && !shares_),
        groups_(groups),
        size_(size) {}

  /// A backward that reduces.
  void micro_step(Lines& lines) const {
    const char* op = is_sharded_ ? "reduce_scatter " : "all_reduce ";
    for (const PlannedUnit& unit : plan_) {
      lines.push_back(absl::StrCat(op, unit.name, " ", unit.layout.bytes()));
    }
    const auto bit_words = static_cast<int64_t>((table_.size() + 63) / 64);
    host_all_gather(lines, "end of backward", 3 + static_cast<int64_t>(plan_.size()) + bit_words);
  }

  /// step() after it, which all-gathers only the units that hold `used` parameters.
  void step(Lines& lines, const std::function<bool(const std::string&)>& used) const {
    constexpr int64_t kFixedWords = 9;
    constexpr int64_t kWordsPerGroup = 6;
    host_all_gather(
        lines, "vote of the step",
        kFixedWords + static_cast<int64_t>(ExactSum::kWords) + 1 + kWordsPerGroup * groups_);
    if (splits_parameters_ || shares_) lines.emplace_back("barrier parameters updated 0");
    if (!gathers_updates_) return;
    for (const PlannedUnit& unit : plan_) {
      bool is_used = false;
      for (const size_t index : unit.parameters) is_used |= used(table_[index].name);
      if (!is_used) continue;
      lines.push_back(absl::StrCat("all_gather ", unit.name, " ", unit.layout.bytes()));
    }
  }

  bool gathers_updates() const { return gathers_updates_; }
  int64_t bytes() const { return plan_.bytes(); }

 private:
  void host_all_gather(Lines& lines, const char* tag, int64_t words) const {
    lines.push_back(absl::StrCat("all_gather ", tag, " ", size_ * words * 8));
  }

  const ParameterTable& table_;
  const UnitPlan& plan_;
  bool is_sharded_;  // a world of one is replicated under every configuration
  bool splits_parameters_;
  bool shares_;
  bool gathers_updates_;  // split parameters are gathered when they are used instead
  int groups_;
  int size_;
};

/// The calls of one rank's loop, and the formula's.
struct Traffic {
  Lines lines;
  Lines expected;
  double large_bytes = 0;  ///< sent for buckets
  int64_t plan_bytes = 0;
};

bool is_small(const RecordedCall& call) {
  return call.tag == "end of backward" || call.tag == "vote of the step";
}

std::vector<Traffic> traffic(const Subject& subject, const Configuration& configuration, int size,
                             Schedule::Sync sync,
                             const std::function<bool(const std::string&)>& used) {
  std::vector<Traffic> by_rank(static_cast<size_t>(size));
  run_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
    Traffic& mine = by_rank[static_cast<size_t>(world->rank())];
    const auto recording = std::make_shared<Recording>();
    const auto group = std::make_shared<RecordingGroup>(world, recording);
    const std::shared_ptr<Net> net = prepare(subject.make(), at::kFloat, 1);
    const OptimizerPlan plan = make_plan(*net);
    Options options = options_of(configuration, {.name = "", .bucket_bytes = kSmallBucketBytes});
    options.reorder_reductions = false;  // Formula has the plan's order
    const auto engine = parallelize(net, plan, options, group);
    const Formula formula(*engine, configuration, static_cast<int>(plan.groups.size()) + 1, size);
    mine.plan_bytes = formula.bytes();
    recording->clear();

    const Schedule schedule{.name = "", .micro_steps = kMicroSteps, .sync = sync};
    const auto backward = [&](int micro) {
      const Moment moment{.step = 0, .rank = world->rank()};
      const Batch batch = batch_of(subject, at::kFloat, schedule, moment, micro);
      loss_of(*net, batch, moment, schedule).backward();
    };
    for (int micro = 0; micro < kMicroSteps; ++micro) {
      if (sync == Schedule::Sync::kLast && micro + 1 < kMicroSteps) {
        const auto sent = [&] { return recording->count() - recording->count("read"); };
        const int64_t before = sent();
        const Engine::NoSync no_sync = engine->no_sync();
        backward(micro);
        EXPECT_EQ(sent(), before) << "no_sync sent something";
      } else {
        backward(micro);
        formula.micro_step(mine.expected);
      }
    }
    engine->step();
    formula.step(mine.expected, used);

    for (const RecordedCall& call : recording->calls()) {
      if (call.op == "read") continue;
      mine.lines.push_back(absl::StrCat(call.op, " ", call.tag, " ", call.tensor_bytes));
      if (!is_small(call)) mine.large_bytes += call.sent_bytes;
    }
  });
  return by_rank;
}

bool all_used(const std::string&) { return true; }

class TrafficTest : public ::testing::TestWithParam<std::tuple<Configuration, int>> {
 protected:
  const Configuration& configuration() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
  double share() const { return static_cast<double>(size() - 1) / size(); }
  bool is_sharded() const { return configuration().degrees_at(size()).optimizer > 1; }
  bool gathers_updates() const {
    return is_sharded() && configuration().degrees_at(size()).parameters == 1 &&
           !configuration().shares_at(size());
  }
};

/// Configurations that split parameters have units instead of buckets.
using BucketTrafficTest = TrafficTest;
std::vector<Configuration> configurations_with_buckets() {
  std::vector<Configuration> configurations = named_and_apart_configurations();
  std::erase_if(configurations, [](const Configuration& configuration) {
    return configuration.splits_parameters();
  });
  return configurations;
}

TEST_P(TrafficTest, FollowsTheFormulaCallByCallOnEveryRank) {
  for (const Traffic& rank :
       traffic(subject("DeepMlp"), configuration(), size(), Schedule::Sync::kEach, all_used)) {
    EXPECT_EQ(rank.lines, rank.expected);
    const double reductions = kMicroSteps * (is_sharded() ? 1 : 2);
    const double updates = gathers_updates() ? 1 : 0;
    EXPECT_DOUBLE_EQ(rank.large_bytes,
                     (reductions + updates) * share() * static_cast<double>(rank.plan_bytes));
  }
}

TEST_P(TrafficTest, NoSyncSendsOnceWhateverTheNumberOfMicroSteps) {
  for (const Traffic& rank :
       traffic(subject("DeepMlp"), configuration(), size(), Schedule::Sync::kLast, all_used)) {
    EXPECT_EQ(rank.lines, rank.expected);
    const double transfers = is_sharded() && !gathers_updates() ? 1 : 2;
    EXPECT_DOUBLE_EQ(rank.large_bytes, transfers * share() * static_cast<double>(rank.plan_bytes));
  }
}

TEST_P(TrafficTest, HasOneOrderOnRanksWhoseBackwardsRunInDifferentOrders) {
  const std::vector<Traffic> ranks =
      traffic(subject("RankOrder"), configuration(), size(), Schedule::Sync::kEach, all_used);
  for (const Traffic& rank : ranks) EXPECT_EQ(rank.lines, ranks[0].lines);
  EXPECT_EQ(ranks[0].lines, ranks[0].expected);
}

TEST_P(TrafficTest, HasOneOrderOnRanksThatTakeDifferentBranches) {
  const std::vector<Traffic> ranks =
      traffic(subject("Branches"), configuration(), size(), Schedule::Sync::kEach, all_used);
  for (const Traffic& rank : ranks) EXPECT_EQ(rank.lines, ranks[0].lines);
}

TEST_P(BucketTrafficTest, WhatNobodyUsedIsReducedButNotGathered) {
  const auto used = [](const std::string& name) { return name.rfind("unused", 0) != 0; };
  const std::vector<Traffic> ranks =
      traffic(subject("UnusedEverywhere"), configuration(), size(), Schedule::Sync::kEach, used);
  EXPECT_EQ(ranks[0].lines, ranks[0].expected);
  EXPECT_THAT(ranks[0].lines, ::testing::Contains(::testing::HasSubstr(" bucket 1 ")));
  EXPECT_THAT(ranks[0].lines,
              ::testing::Not(::testing::Contains(::testing::HasSubstr("all_gather bucket 1 "))));
}

/// Negative control: one bucket more or less in the formula is noticed.
TEST_P(TrafficTest, AMissingBucketWouldShow) {
  Traffic rank =
      traffic(subject("DeepMlp"), configuration(), size(), Schedule::Sync::kEach, all_used)[0];
  // In a world of one, a strategy that splits parameters has one bucket of the default size.
  const bool has_one_bucket = configuration().splits_parameters() && size() == 1;
  ASSERT_GT(rank.expected.size(), has_one_bucket ? 6u : 10u);
  rank.lines.erase(rank.lines.begin() + 3);
  EXPECT_NE(rank.lines, rank.expected);
}

std::string name_of_traffic(const ::testing::TestParamInfo<std::tuple<Configuration, int>>& info) {
  return std::get<0>(info.param).name + "_World" + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(, TrafficTest,
                         ::testing::Combine(::testing::ValuesIn(named_and_apart_configurations()),
                                            ::testing::Values(1, 2, 3, 4)),
                         name_of_traffic);
INSTANTIATE_TEST_SUITE_P(, BucketTrafficTest,
                         ::testing::Combine(::testing::ValuesIn(configurations_with_buckets()),
                                            ::testing::Values(1, 2, 3, 4)),
                         name_of_traffic);

}  // namespace
}  // namespace tessera::internal::testing
