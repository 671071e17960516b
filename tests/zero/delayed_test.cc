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

#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/delayed_group.h"
#include "tessera/tests/support/training.h"

// Every collective late and every freed buffer full of NaN: what the engine reads too early or
// writes too soon shows as other bits.

namespace tessera::testing {
namespace {

using Case = std::tuple<Row, std::string /*model*/, Schedule>;

/// Prefetching is on where lanes run in the background, which the delayed ones say they do.
std::vector<Row> delayed_rows() {
  std::vector<Row> rows = named_and_apart_rows();
  for (Row row : {resharding(1), resharding(2), apart(hybrid(2, 2, 2)), hybrid(2, 4, 4)}) {
    rows.push_back(std::move(row));
  }
  for (Row& row : rows) {
    if (row.splits_parameters()) row.prefetch = true;
  }
  return rows;
}

class DelayedLanes : public ::testing::TestWithParam<Case> {};

TEST_P(DelayedLanes, FindEveryWaitInPlace) {
  const auto& [row, model, schedule] = GetParam();
  const int world = row.suits(3) ? 3 : 4;
  Row poisoned = row;
  poisoned.poison_freed = true;
  const Outcome expected = train_on_threads(subject(model), at::kFloat, row, schedule, world);
  const Outcome delayed = train_on_threads(
      subject(model), at::kFloat, poisoned, schedule, world, {},
      [](std::shared_ptr<ProcessGroup> group) {
        return std::make_shared<DelayedGroup>(
            std::move(group), DelayOptions{.seed = 7, .longest = std::chrono::microseconds(500)});
      });
  EXPECT_EQ(bit_differences(delayed, expected), "");
}

INSTANTIATE_TEST_SUITE_P(
    Scenario45, DelayedLanes,
    ::testing::Combine(::testing::ValuesIn(delayed_rows()),
                       ::testing::Values("OddMlp", "Branches", "RankOrder", "CheckpointedTwice",
                                         "CheckpointedOnSomeRanks", "Blocks", "BranchingBlocks"),
                       ::testing::ValuesIn(schedules())),
    [](const auto& info) {
      return std::get<0>(info.param).name + "_" + std::get<1>(info.param) + "_" +
             std::get<2>(info.param).name;
    });

struct Promised final : Work {
  bool is_completed() override { return true; }
  void wait() override {}
};

/// As if the engine had forgotten to wait: a reduction runs only when the next collective is
/// called; until then its result holds NaN.
class ImpatientGroup final : public ProcessGroup {
 public:
  explicit ImpatientGroup(std::shared_ptr<ProcessGroup> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view name() const override { return inner_->name(); }
  std::string_view backend() const override { return inner_->backend(); }
  std::shared_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op,
                                   std::string_view tag) override {
    return later(tensor, [=, tag = std::string(tag), group = inner_] {
      group->all_reduce(tensor, op, tag)->wait();
    });
  }
  std::shared_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       ReduceOp op, std::string_view tag, int slice) override {
    return later(output, [=, tag = std::string(tag), group = inner_] {
      group->reduce_scatter(output, input, op, tag, slice)->wait();
    });
  }
  std::shared_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   std::string_view tag) override {
    catch_up();
    return inner_->all_gather(output, input, tag);
  }
  std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root,
                                  std::string_view tag) override {
    catch_up();
    return inner_->broadcast(tensor, root, tag);
  }
  void barrier(std::string_view tag) override {
    catch_up();
    inner_->barrier(tag);
  }
  bool runs_in_background() const override { return true; }
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override {
    catch_up();
    return inner_->make_window(own, name);
  }
  std::unique_ptr<SharedBuffer> make_shared_buffer(int64_t bytes, std::string_view name) override {
    catch_up();
    return inner_->make_shared_buffer(bytes, name);
  }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return inner_->allocate(numel, dtype);
  }
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override {
    auto made = inner_->subgroup(ranks, name);
    if (made == nullptr) return nullptr;
    return std::make_shared<ImpatientGroup>(std::move(made));
  }
  void abort(std::string_view cause) noexcept override { inner_->abort(cause); }

 private:
  std::shared_ptr<Work> later(const at::Tensor& result, std::function<void()> collective) {
    catch_up();
    const at::Tensor before = result.clone();
    std::memset(result.data_ptr(), 0xff, result.nbytes());  // all bits set is a NaN
    pending_ = [result, before, collective = std::move(collective)] {
      std::memcpy(result.data_ptr(), before.data_ptr(), before.nbytes());
      collective();
    };
    return std::make_shared<Promised>();
  }
  void catch_up() {
    if (pending_) std::exchange(pending_, {})();
  }

  std::shared_ptr<ProcessGroup> inner_;
  std::function<void()> pending_;
};

class MissingWait : public ::testing::TestWithParam<Row> {};

/// Three micro-steps: under zero1 a first reduced slice is left where it is and read in the step
/// only, when later collectives have long brought it.
TEST_P(MissingWait, IsCaught) {
  const Schedule& schedule = schedules()[2];
  ASSERT_EQ(schedule.micro_steps, 3);
  const Outcome expected = train_on_threads(subject("OddMlp"), at::kFloat, GetParam(), schedule, 3);
  std::string verdict;
  try {
    verdict = bit_differences(
        train_on_threads(subject("OddMlp"), at::kFloat, GetParam(), schedule, 3, {},
                         [](std::shared_ptr<ProcessGroup> world) {
                           return std::make_shared<ImpatientGroup>(std::move(world));
                         }),
        expected);
  } catch (const std::runtime_error& error) {
    verdict = error.what();
  }
  EXPECT_NE(verdict, "");
}

INSTANTIATE_TEST_SUITE_P(, MissingWait, ::testing::ValuesIn(named_rows()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::testing
