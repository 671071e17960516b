// The groups that other tests rely on: a recording group counts correctly, a delayed group reveals
// a missing wait.
#include <future>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/support/delayed_group.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/recording_group.h"
#include "tessera/tests/support/watched_window.h"

namespace tessera::internal {
namespace {

using testing::DelayedGroup;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Recording;
using testing::RecordingGroup;
using testing::run_ranks;

TEST(RecordingGroup, CountsTheBytesOfARing) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    auto recording = std::make_shared<Recording>();
    RecordingGroup group(world, recording);
    group.all_reduce(at::zeros({30}), ReduceOp::kSum, "a")->wait();
    group.reduce_scatter(at::zeros({10}), at::zeros({30}), ReduceOp::kAvg, "b")->wait();
    group.all_gather(at::zeros({30}), at::zeros({10}), "c")->wait();
    group.broadcast(at::zeros({30}), 1, "d")->wait();
    group.barrier("e");
    auto pair = group.subgroup({0, 1}, "pair");
    if (pair != nullptr) pair->all_reduce(at::zeros({2}), ReduceOp::kMax, "f")->wait();
    EXPECT_DOUBLE_EQ(recording->sent_bytes("all_reduce"), 160.0 + (pair != nullptr ? 8.0 : 0.0));
    EXPECT_DOUBLE_EQ(recording->sent_bytes("reduce_scatter"), 80.0);
    EXPECT_DOUBLE_EQ(recording->sent_bytes("all_gather"), 80.0);
    EXPECT_DOUBLE_EQ(recording->sent_bytes("broadcast"), world->rank() == 1 ? 120.0 : 0.0);
    EXPECT_EQ(recording->count(), pair != nullptr ? 6 : 5);
    auto lines = recording->lines();
    lines.resize(5);
    EXPECT_THAT(lines, ElementsAre("all_reduce a 120", "reduce_scatter b 120", "all_gather c 120",
                                   "broadcast d 120", "barrier e 0"));
  });
}

TEST(RecordingGroup, FailsTheCallItWasToldTo) {
  const auto errors =
      testing::run_ranks_expecting_errors(2, [](std::shared_ptr<ProcessGroup> world) {
        auto recording = std::make_shared<Recording>();
        RecordingGroup group(world, recording);
        if (world->rank() == 1) recording->fail_call(2);
        for (int i = 0; i < 5; ++i) group.barrier(std::to_string(i));
      });
  EXPECT_THAT(errors[1], HasSubstr("call 2 (barrier '2') was made to fail"));
  EXPECT_THAT(errors[0], HasSubstr("rank 1 left"));
}

TEST(RecordingGroup, CountsReadsOfOtherRanks) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    auto recording = std::make_shared<Recording>();
    RecordingGroup group(world, recording);
    const int rank = world->rank();
    const auto window = group.make_window(world->allocate(10, at::kFloat), "w");
    window->read(rank, 0, at::zeros({10}), "own");
    window->read((rank + 1) % 3, 3, at::zeros({7}), "other");
    EXPECT_DOUBLE_EQ(recording->sent_bytes(), 28.0);
    EXPECT_DOUBLE_EQ(recording->sent_bytes("read"), 28.0);
    EXPECT_THAT(recording->lines(), ElementsAre("window w 40", "read own 40", "read other 28"));
    EXPECT_EQ(recording->calls()[2].group, "world");
    group.reduce_scatter(at::zeros({1}), at::zeros({3}), ReduceOp::kSum, "s", (rank + 1) % 3)
        ->wait();
  });
}

TEST(RecordingGroup, FailsTheReadItWasToldTo) {
  const auto errors =
      testing::run_ranks_expecting_errors(2, [](std::shared_ptr<ProcessGroup> world) {
        auto recording = std::make_shared<Recording>();
        RecordingGroup group(world, recording);
        const auto window = group.make_window(world->allocate(10, at::kFloat), "w");
        if (world->rank() == 1) recording->fail_call(1);
        for (int i = 0; i < 3; ++i) window->read(0, 0, at::zeros({1}), std::to_string(i));
        group.barrier();
      });
  EXPECT_THAT(errors[1], HasSubstr("call 2 (read '1') was made to fail"));
  EXPECT_THAT(errors[0], HasSubstr("rank 1 left"));
}

/// Records the destination's content when a read begins.
class ObservingGroup final : public ForwardingGroup {
 public:
  ObservingGroup(std::shared_ptr<ProcessGroup> inner, std::vector<int>& seen)
      : ForwardingGroup(std::move(inner)), seen_(seen) {}

  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override {
    const auto before = [this](int, const at::Tensor& to, std::string_view) {
      seen_.push_back(*to.const_data_ptr<int>());
    };
    return std::make_unique<testing::WatchedWindow>(inner_->make_window(own, name), before);
  }

 protected:
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override { return inner; }

 private:
  std::vector<int>& seen_;
};

// Negative control: a plain group leaves the old content.
TEST(DelayedGroup, ReadsHoldPoisonUntilTheyReturn) {
  for (const bool delayed : {true, false}) {
    run_ranks(2, [&](std::shared_ptr<ProcessGroup> world) {
      std::vector<int> seen;
      std::shared_ptr<ProcessGroup> group = std::make_shared<ObservingGroup>(world, seen);
      if (delayed) group = std::make_shared<DelayedGroup>(group);
      EXPECT_EQ(group->can().in_background, delayed);
      const int rank = world->rank();
      const at::Tensor own = world->allocate(1, at::kInt);
      own.fill_(rank);
      const auto window = group->make_window(own, "w");
      group->barrier();
      const at::Tensor to = at::full({1}, 42, at::kInt);
      window->read(1 - rank, 0, to, "unit");
      EXPECT_EQ(to.item<int>(), 1 - rank);
      window->read(rank, 0, own, "itself");
      EXPECT_EQ(own.item<int>(), rank);
      EXPECT_THAT(seen, ElementsAre(delayed ? 0x7f7f7f7f : 42, rank));
      const at::Tensor whole = at::ones({2}, at::kInt);
      const int slice = 1 - rank;
      group->reduce_scatter(whole.narrow(0, slice, 1), whole, ReduceOp::kSum, "s", slice)->wait();
      EXPECT_EQ(whole[slice].item<int>(), 2);
      EXPECT_EQ(whole[rank].item<int>(), 1);
      group->barrier();
    });
  }
}

TEST(DelayedGroup, GivesTheSameResultsToThoseWhoWait) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    DelayedGroup group(world, {.seed = 7});
    const int rank = world->rank();
    std::vector<at::Tensor> tensors;
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < 10; ++i) {
      tensors.push_back(at::full({100}, rank + i, at::kFloat));
      works.push_back(group.all_reduce(tensors[i], ReduceOp::kSum, "sum"));
    }
    at::Tensor whole = at::full({6}, rank, at::kLong);
    auto scattered = group.reduce_scatter(whole.narrow(0, 2 * rank, 2), whole, ReduceOp::kSum);
    at::Tensor gathered = at::full({6}, rank, at::kInt);
    auto gather = group.all_gather(gathered, gathered.narrow(0, 2 * rank, 2));
    at::Tensor sent = at::full({3}, rank, at::kHalf);
    auto cast = group.broadcast(sent, 2);
    for (int i = 0; i < 10; ++i) {
      works[i]->wait();
      EXPECT_EQ(tensors[i].sum().item<float>(), 100.0f * (3 + 3 * i));
    }
    scattered->wait();
    EXPECT_EQ(whole[2 * rank].item<int64_t>(), 3);
    EXPECT_EQ(whole[(2 * rank + 2) % 6].item<int64_t>(), rank);
    gather->wait();
    EXPECT_TRUE(at::equal(gathered, at::arange(3, at::kInt).repeat_interleave(2)));
    cast->wait();
    EXPECT_EQ(sent[0].item<float>(), 2.0f);
    auto pair = group.subgroup({0, 2}, "pair");
    if (pair != nullptr) pair->barrier();
    group.barrier();
  });
}

// The negative control of every test with a delayed group: results read too early are poison, never
// old values.
TEST(DelayedGroup, ResultsReadWithoutWaitingArePoison) {
  std::promise<void> looked;
  auto gate = looked.get_future().share();
  run_ranks(2, [&](std::shared_ptr<ProcessGroup> world) {
    DelayedGroup group(world);
    at::Tensor tensor = at::ones({100});
    at::Tensor output = at::zeros({4}, at::kInt);
    if (world->rank() == 1) gate.wait();  // so nothing can have finished when rank 0 looks
    auto first = group.all_reduce(tensor, ReduceOp::kSum);
    auto second = group.all_gather(output, at::ones({2}, at::kInt));
    if (world->rank() == 0) {
      EXPECT_TRUE(at::isnan(tensor).all().item<bool>());
      EXPECT_EQ(output[0].item<int>(), 0x7f7f7f7f);
      EXPECT_FALSE(first->is_completed());
      looked.set_value();
    }
    second->wait();
    first->wait();
    EXPECT_EQ(tensor[0].item<float>(), 2.0f);
    EXPECT_EQ(output[3].item<int>(), 1);
  });
}

TEST(DelayedGroup, AnExceptionWithWorkInFlightHangsNobody) {
  const auto errors =
      testing::run_ranks_expecting_errors(3, [](std::shared_ptr<ProcessGroup> world) {
        DelayedGroup group(world);
        at::Tensor tensor = at::ones({10});
        if (world->rank() == 1) throw std::runtime_error("bad batch");
        group.all_reduce(tensor, ReduceOp::kSum)->wait();
      });
  EXPECT_EQ(errors[1], "bad batch");
  EXPECT_THAT(errors[0], HasSubstr("rank 1 left while an exception unwound"));
  EXPECT_THAT(errors[2], HasSubstr("rank 1 left while an exception unwound"));
}

}  // namespace
}  // namespace tessera::internal
