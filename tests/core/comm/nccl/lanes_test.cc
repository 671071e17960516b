// Streams, events and lanes: what waits for what, and what must not wait.
#include <atomic>
#include <cstdlib>
#include <future>
#include <set>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/nccl/meeting.h"
#include "tessera/tests/core/comm/nccl/nccl_ranks.h"

namespace tessera::internal {
namespace {

using nccl::Group;
using nccl::wait_on_host;
using testing::count_calls;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::fake;
using testing::FakeCall;
using ::testing::HasSubstr;
using testing::HostDevice;
using testing::run_nccl_ranks;
using testing::run_nccl_ranks_expecting_errors;

class NcclLanes : public ::testing::Test {
 protected:
  void SetUp() override { fake().reset(); }
};

std::vector<FakeCall> calls_of(const std::string& function, int rank) {
  std::vector<FakeCall> found;
  for (const FakeCall& call : fake().calls()) {
    if (call.function == function && call.rank == rank) found.push_back(call);
  }
  return found;
}

/// Rank 0 reduces before it gathers; rank 1 gathers first and reduces only when that has ended.
/// This ends only if a gather does not queue after a reduction.
void cross(std::shared_ptr<Group> group, HostDevice&) {
  at::Tensor reduced = at::ones({4});
  at::Tensor all = at::empty({2 * group->size()});
  if (group->rank() == 0) {
    const auto reducing = group->all_reduce(reduced, ReduceOp::kSum, "bucket");
    const auto gathering = group->all_gather(all, at::zeros({2}), "unit");
    wait_on_host(*gathering);
    wait_on_host(*reducing);
  } else {
    wait_on_host(*group->all_gather(all, at::zeros({2}), "unit"));
    wait_on_host(*group->all_reduce(reduced, ReduceOp::kSum, "bucket"));
  }
}

/// The deliberate fault: one communicator for both lanes.
std::shared_ptr<Group> make_joined_lanes(nccl::WorldOptions options) {
  std::vector<int> ranks;
  for (int rank = 0; rank < options.size; ++rank) ranks.push_back(rank);
  auto progress = std::make_shared<nccl::Progress>("world", ranks);
  const int rank = options.rank;
  auto world = nccl::World::start(std::move(options), progress);
  const auto pending = std::make_shared<nccl::Pending>(world, progress, rank,
                                                       nccl::NumberedCall::of({.op = Op::kInit}),
                                                       nullptr, std::vector<at::Tensor>());
  world->watch(pending);
  auto one = nccl::meet(*pending);
  pending->mark_finished();
  return std::make_shared<Group>(world, progress, rank, one, one);
}

TEST_F(NcclLanes, EachLaneHasItsOwnCommunicatorAndStream) {
  run_nccl_ranks(2, cross);
  for (int rank = 0; rank < 2; ++rank) {
    const auto gathers = calls_of("ncclAllGather", rank);
    const auto reductions = calls_of("ncclAllReduce", rank);
    ASSERT_EQ(gathers.size(), 1u);
    ASSERT_EQ(reductions.size(), 1u);
    EXPECT_EQ(gathers[0].communicator, "world: gather lane");
    EXPECT_EQ(reductions[0].communicator, "world: reduce lane");
    EXPECT_NE(gathers[0].stream, reductions[0].stream);
  }
  EXPECT_EQ(count_calls("ncclGetUniqueId"), 1);
  EXPECT_EQ(count_calls("ncclCommInitRankConfig"), 2);
  EXPECT_EQ(count_calls("ncclCommSplit"), 2);
  EXPECT_EQ(std::getenv("NCCL_ALGO"), nullptr);
}

TEST_F(NcclLanes, ControlOneCommunicatorForBothLanesIsCaught) {
  testing::NcclRankOptions options = testing::impatient();
  options.make = make_joined_lanes;
  EXPECT_THAT(run_nccl_ranks_expecting_errors(2, cross, options),
              Each(HasSubstr(testing::waited_impatiently())));
}

TEST_F(NcclLanes, CallsReachNcclInTheOrderInWhichTheyAreMade) {
  run_nccl_ranks(3, [](std::shared_ptr<Group> group, HostDevice&) {
    at::Tensor one = at::zeros({3});
    std::vector<std::shared_ptr<Work>> works;
    for (const int64_t numel : {3, 1, 2}) {
      works.push_back(group->all_reduce(one.narrow(0, 0, numel), ReduceOp::kSum));
    }
    for (const auto& work : works) wait_on_host(*work);
  });
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<size_t> numels;
    for (const FakeCall& call : calls_of("ncclAllReduce", rank)) numels.push_back(call.numel);
    EXPECT_THAT(numels, ElementsAre(3u, 1u, 2u));
  }
}

TEST_F(NcclLanes, WaitHoldsBackTheCurrentStreamAndNotTheHost) {
  std::atomic<int> checked{0};
  run_nccl_ranks(2, [&](std::shared_ptr<Group> group, HostDevice& device) {
    fake().hold();
    at::Tensor tensor = at::ones({5});
    at::Tensor seen = at::zeros({5});
    const auto work = group->all_reduce(tensor, ReduceOp::kSum);
    work->wait();  // returns although nothing can end
    EXPECT_FALSE(work->is_completed());
    device.current_stream()->copy(seen.data_ptr(), tensor.data_ptr(), tensor.nbytes());
    // Without the wait that wait() queued, the copy would run now.
    EXPECT_EQ(seen.sum().item<float>(), 0.0f);
    if (++checked == 2) fake().release();
    device.synchronize();
    EXPECT_TRUE(work->is_completed());
    EXPECT_EQ(seen.sum().item<float>(), 10.0f);
  });
}

TEST_F(NcclLanes, ControlACopyWithoutWaitSeesTheOldValue) {
  std::atomic<int> checked{0};
  run_nccl_ranks(2, [&](std::shared_ptr<Group> group, HostDevice& device) {
    fake().hold();
    at::Tensor tensor = at::ones({5});
    at::Tensor seen = at::zeros({5});
    const auto work = group->all_reduce(tensor, ReduceOp::kSum);
    device.current_stream()->copy(seen.data_ptr(), tensor.data_ptr(), tensor.nbytes());
    device.synchronize();
    EXPECT_EQ(seen.sum().item<float>(), 5.0f);
    if (++checked == 2) fake().release();
    wait_on_host(*work);
  });
}

TEST_F(NcclLanes, CollectivesRunBehindWhatTheCurrentStreamHolds) {
  run_nccl_ranks(3, [](std::shared_ptr<Group> group, HostDevice& device) {
    std::promise<void> gate;
    at::Tensor tensor = at::zeros({5});
    at::Tensor value = at::ones({5});
    const auto opened = std::make_shared<std::future<void>>(gate.get_future());
    HostDevice::run(*device.current_stream(), [opened] { opened->wait(); });
    device.current_stream()->copy(tensor.data_ptr(), value.data_ptr(), value.nbytes());
    const auto work = group->all_reduce(tensor, ReduceOp::kSum);
    EXPECT_FALSE(work->is_completed());
    gate.set_value();
    wait_on_host(*work);
    EXPECT_EQ(tensor.sum().item<float>(), 15.0f);
  });
}

/// NCCL's calls return before their work is on the stream.
TEST_F(NcclLanes, EventsAreRecordedOnlyWhenTheWorkIsOnTheStream) {
  fake().set_questions_before_launch(50);
  run_nccl_ranks(2, [](std::shared_ptr<Group> group, HostDevice&) {
    for (int i = 0; i < 5; ++i) {
      at::Tensor tensor = at::ones({3});
      wait_on_host(*group->all_reduce(tensor, ReduceOp::kSum));
      EXPECT_EQ(tensor.sum().item<float>(), 6.0f);
    }
  });
}

TEST_F(NcclLanes, ControlAnEventRecordedAtOnceIsTooEarly) {
  run_nccl_ranks(1, [](std::shared_ptr<Group>, HostDevice& device) {
    const auto api = testing::fake_api();
    const auto communicator = std::make_shared<nccl::Communicator>(api, "bare");
    nccl::UniqueId id;
    ASSERT_EQ(api->get_unique_id(&id), nccl::Result::kSuccess);
    communicator->init(1, 0, id);
    while (communicator->poll() != nccl::Result::kSuccess) {
    }
    fake().set_questions_before_launch(3);
    at::Tensor from = at::ones({3});
    at::Tensor to = at::zeros({3});
    const auto stream = device.make_stream(Device::Priority::kHigh);
    const auto event = device.make_event();
    communicator->call([&](nccl::OpaqueComm* comm) {
      return api->all_reduce(from.const_data_ptr(), to.data_ptr(), 3, nccl::DataType::kFloat32,
                             nccl::RedOp::kSum, comm, stream->handle());
    });
    stream->record(*event);
    while (!event->is_done()) {
    }
    EXPECT_EQ(to.sum().item<float>(), 0.0f);
    nccl::Communicator::abort_together({communicator});
  });
}

TEST_F(NcclLanes, MessagesOfABatchAreOneGroupOfCalls) {
  fake().set_questions_before_launch(3);
  run_nccl_ranks(2, [](std::shared_ptr<Group> group, HostDevice& device) {
    const int peer = 1 - group->rank();
    const at::Tensor sent = at::full({3}, group->rank() + 1.0f);
    const at::Tensor received = at::zeros({3});
    const at::Tensor own = at::zeros({2}, at::kLong);
    const auto works =
        group->batch_isend_irecv({{Op::kRecv, received, peer},
                                  {Op::kSend, at::ones({2}, at::kLong), group->rank()},
                                  {Op::kSend, sent, peer},
                                  {Op::kRecv, own, group->rank()}});
    for (const auto& work : works) work->wait();
    device.synchronize();
    EXPECT_EQ(received.sum().item<float>(), 3.0f * (peer + 1));
    EXPECT_EQ(own.sum().item<int64_t>(), 2);
    EXPECT_THAT(group->batch_isend_irecv({}), ::testing::IsEmpty());
    group->barrier("alone");
  });
  for (int rank = 0; rank < 2; ++rank) {
    const auto sends = calls_of("ncclSend", rank);
    const auto receives = calls_of("ncclRecv", rank);
    ASSERT_EQ(sends.size(), 1u);
    ASSERT_EQ(receives.size(), 1u);
    EXPECT_GT(sends[0].group, 0);
    EXPECT_EQ(receives[0].group, sends[0].group);
    EXPECT_EQ(calls_of("ncclAllReduce", rank)[0].group, 0);
  }
}

TEST_F(NcclLanes, SubgroupsAreSplitFromTheirParents) {
  run_nccl_ranks(3, [](std::shared_ptr<Group> group, HostDevice&) {
    const auto part = group->subgroup({0, 2}, "ends");
    if (part != nullptr) part->barrier();
    group->barrier();
  });
  EXPECT_EQ(count_calls("ncclCommInitRankConfig"), 3);
  // Three for the world's gather lane, three for the subgroup, two for the subgroup's gather lane.
  EXPECT_EQ(count_calls("ncclCommSplit"), 8);
  std::set<std::string> names;
  for (const FakeCall& call : fake().calls()) names.insert(call.communicator);
  EXPECT_EQ(names.count("world/ends: reduce lane"), 1u);
}

TEST_F(NcclLanes, WhatNeedsCommonMemoryIsRefusedOrAbsent) {
  run_nccl_ranks(2, [](std::shared_ptr<Group> group, HostDevice&) {
    EXPECT_EQ(group->backend(), "nccl");
    EXPECT_TRUE(group->can().in_background);
    EXPECT_EQ(group->make_shared_buffer(64, "parameters"), nullptr);
    try {
      group->make_window(group->allocate(4, at::kFloat), "unit 0");
      ADD_FAILURE();
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("[comm] make_window 'unit 0': got a group of backend "
                            "'nccl' on cpu, expected one whose ranks read each other's"));
    }
    EXPECT_THROW(group->all_gather(at::empty({5}), at::empty({2})), c10::Error);
    EXPECT_THROW(group->broadcast(at::empty({5}), 2), c10::Error);
    EXPECT_THROW(group->subgroup({1, 0}, "x"), c10::Error);
    group->barrier();
  });
}

}  // namespace
}  // namespace tessera::internal
