// The groups that other tests rely on: recording counts right, a delayed group shows a missing
// wait.
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/support/delayed_group.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/recording_group.h"

namespace tessera {
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

// The negative control of every test that uses it: results read too early are poison, never
// yesterday's values.
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
}  // namespace tessera
