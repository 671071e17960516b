#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/delayed_group.h"
#include "tessera/tests/support/training.h"

// Every collective is late and every freed buffer holds NaN, so data that the engine reads too
// early or overwrites too soon shows in the bits.

namespace tessera::internal::testing {
namespace {

using DelayedCase = std::tuple<Configuration, std::string /*model*/, Schedule>;

/// Prefetching is on if lanes run in the background, which delayed groups report.
std::vector<Configuration> delayed_configurations() {
  std::vector<Configuration> configurations = named_and_apart_configurations();
  for (Configuration configuration :
       {resharding(1), resharding(2), apart(hybrid(2, 2, 2)), hybrid(2, 4, 4)}) {
    configurations.push_back(std::move(configuration));
  }
  for (Configuration& configuration : configurations) {
    if (configuration.splits_parameters()) configuration.prefetch = true;
  }
  return configurations;
}

class DelayedLanes : public ::testing::TestWithParam<DelayedCase> {};

TEST_P(DelayedLanes, FindEveryWaitInPlace) {
  const auto& [configuration, model, schedule] = GetParam();
  const int world = configuration.suits(3) ? 3 : 4;
  Configuration poisoned = configuration;
  poisoned.poison_freed = true;
  const Outcome expected =
      expected_outcome(subject(model), at::kFloat, configuration, schedule, world);
  const Outcome delayed = train_on_threads(
      subject(model), at::kFloat, poisoned, schedule, world, {},
      [](std::shared_ptr<ProcessGroup> group) {
        return std::make_shared<DelayedGroup>(
            std::move(group), DelayOptions{.seed = 7, .longest = std::chrono::microseconds(500)});
      });
  EXPECT_EQ(bit_differences(delayed, expected), "");
}

/// Combines each configuration with each model; schedules take turns, unless all rows are taken.
std::vector<DelayedCase> delayed_cases() {
  std::vector<DelayedCase> cases;
  size_t turn = 0;
  for (const Configuration& configuration : delayed_configurations()) {
    for (const char* model : {"OddMlp", "Branches", "RankOrder", "CheckpointedTwice",
                              "CheckpointedOnSomeRanks", "Blocks", "BranchingBlocks"}) {
      if (!has_turn(++turn, 2)) continue;
      for (size_t i = 0; i < schedules().size(); ++i) {
        if (!takes_all_rows() && i != turn / 2 % schedules().size()) continue;
        cases.emplace_back(configuration, model, schedules()[i]);
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Scenario45, DelayedLanes, ::testing::ValuesIn(delayed_cases()),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + std::get<1>(info.param) +
                                  "_" + std::get<2>(info.param).name;
                         });

struct Promised final : Work {
  bool is_completed() override { return true; }
  void wait() override {}
};

/// Simulates an engine that forgets to wait: a reduction runs only when the next collective is
/// called; until then its result holds NaN.
class ImpatientGroup final : public ForwardingGroup {
 public:
  explicit ImpatientGroup(std::shared_ptr<ProcessGroup> inner)
      : ForwardingGroup(std::move(inner)) {}

  Capabilities can() const override {
    Capabilities can = inner_->can();
    can.in_background = true;
    return can;
  }
  std::shared_ptr<Work> run(const Collective& collective) override {
    catch_up();
    if (collective.op != Op::kAllReduce && collective.op != Op::kReduceScatter) {
      return inner_->run(collective);
    }
    later(collective);
    return std::make_shared<Promised>();
  }
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override {
    catch_up();
    return inner_->make_window(own, name);
  }
  std::unique_ptr<SharedBuffer> make_shared_buffer(int64_t bytes, std::string_view name) override {
    catch_up();
    return inner_->make_shared_buffer(bytes, name);
  }

 protected:
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override {
    return std::make_shared<ImpatientGroup>(std::move(inner));
  }

 private:
  void later(const Collective& collective) {
    const at::Tensor result = collective.output;
    const at::Tensor before = result.clone();
    std::memset(result.data_ptr(), 0xff, result.nbytes());  // all bits set is a NaN
    pending_ = [call = collective, tag = std::string(collective.tag), before,
                group = inner_]() mutable {
      std::memcpy(call.output.data_ptr(), before.data_ptr(), before.nbytes());
      call.tag = tag;
      group->run(call)->wait();
    };
  }
  void catch_up() {
    if (pending_) std::exchange(pending_, {})();
  }

  std::function<void()> pending_;
};

class MissingWait : public ::testing::TestWithParam<Configuration> {};

/// Three micro-steps, because under zero1 a first reduced slice is read only in the step, after
/// later collectives have already delivered it.
TEST_P(MissingWait, IsCaught) {
  const Schedule& schedule = schedules()[2];
  ASSERT_EQ(schedule.micro_steps, 3);
  const Outcome expected = train_on_threads(subject("OddMlp"), at::kFloat, GetParam(), schedule, 3);
  std::string difference;
  try {
    difference = bit_differences(
        train_on_threads(subject("OddMlp"), at::kFloat, GetParam(), schedule, 3, {},
                         [](std::shared_ptr<ProcessGroup> world) {
                           return std::make_shared<ImpatientGroup>(std::move(world));
                         }),
        expected);
  } catch (const std::runtime_error& error) {
    difference = error.what();
  }
  EXPECT_NE(difference, "");
}

INSTANTIATE_TEST_SUITE_P(, MissingWait, ::testing::ValuesIn(named_configurations()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::internal::testing
