// Failures: one cause, on every rank, and never a hang.
#include <atomic>
#include <cstdlib>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/errors.h"
#include "tessera/tests/core/comm/nccl/nccl_ranks.h"

namespace tessera::internal {
namespace {

using nccl::Group;
using nccl::wait_on_host;
using ::testing::AllOf;
using testing::call_until_failure;
using testing::count_calls;
using ::testing::Each;
using testing::fake;
using testing::fake_api;
using ::testing::HasSubstr;
using testing::HostDevice;
using testing::impatient;
using testing::NcclRankOptions;
using testing::run_nccl_ranks;
using testing::run_nccl_ranks_expecting_errors;
using testing::wait_for_failure;
using testing::waited_impatiently;

class NcclFailures : public ::testing::Test {
 protected:
  void SetUp() override { fake().reset(); }
};

TEST_F(NcclFailures, ATimeOutNamesRankOpSequenceTagAndWhoIsMissing) {
  const auto errors = run_nccl_ranks_expecting_errors(
      3,
      [](const std::shared_ptr<Group>& group, HostDevice&) {
        group->barrier("together");
        if (group->rank() == 1) {
          wait_for_failure(*group);
        } else {
          wait_on_host(*group->all_reduce(at::ones({8}), ReduceOp::kSum, "bucket 3"));
        }
      },
      impatient());
  EXPECT_THAT(errors[0], HasSubstr("[comm] all_reduce #1 'bucket 3' on group 'world', rank 0: " +
                                   waited_impatiently()));
  EXPECT_THAT(errors[2], HasSubstr("[comm] all_reduce #1 'bucket 3' on group 'world', rank 2: "));
  const auto cause = [](const std::string& error) { return error.substr(error.find("timed out")); };
  EXPECT_EQ(cause(errors[0]), cause(errors[2]));
  EXPECT_EQ(cause(errors[0]), cause(errors[1]));
  EXPECT_EQ(count_calls("ncclCommAbort"), 6);  // two lanes of three ranks
  EXPECT_EQ(count_calls("ncclCommFinalize"), 0);
}

TEST_F(NcclFailures, ARankThatCallsNothingMoreIsNamed) {
  std::atomic<bool> over{false};
  const auto errors = run_nccl_ranks_expecting_errors(
      3,
      [&](const std::shared_ptr<Group>& group, HostDevice&) {
        if (group->rank() == 2) {
          while (!over) std::this_thread::yield();
          wait_on_host(*group->all_reduce(at::ones({8}), ReduceOp::kSum, "unit 0"));
        }
        try {
          wait_on_host(*group->all_reduce(at::ones({8}), ReduceOp::kSum, "unit 0"));
        } catch (...) {
          over = true;
          throw;
        }
      },
      impatient());
  EXPECT_THAT(errors,
              Each(HasSubstr(waited_impatiently() + "rank 2, which has begun 0 collectives")));
}

TEST_F(NcclFailures, ARankThatHasLeftIsNamed) {
  const auto errors = run_nccl_ranks_expecting_errors(
      3,
      [](const std::shared_ptr<Group>& group, HostDevice&) {
        group->barrier();
        if (group->rank() == 1) return;
        wait_on_host(*group->all_gather(at::empty({3}), at::ones({1}), "unit 0"));
      },
      impatient());
  EXPECT_EQ(errors[1], "");
  for (const int rank : {0, 2}) {
    EXPECT_THAT(errors[rank], HasSubstr(waited_impatiently() +
                                        "rank 1, which left the group after 1 collectives"));
  }
}

TEST_F(NcclFailures, ARankThatNeverComesIsNamedAtStart) {
  NcclRankOptions options = impatient();
  options.absent_rank = 1;
  const auto errors = run_nccl_ranks_expecting_errors(
      3, [](const std::shared_ptr<Group>&, HostDevice&) {}, options);
  for (const int rank : {0, 2}) {
    EXPECT_THAT(errors[rank],
                AllOf(HasSubstr("[comm] init_process_group on group 'world', rank "),
                      HasSubstr(waited_impatiently() + "rank 1, which does not answer")));
  }
}

TEST_F(NcclFailures, CallsThatDoNotFitAreNamedAtTheTimeOut) {
  const auto errors = run_nccl_ranks_expecting_errors(
      3,
      [](const std::shared_ptr<Group>& group, HostDevice&) {
        const int64_t numel = group->rank() == 1 ? 9 : 8;
        wait_on_host(*group->all_reduce(at::ones({numel}), ReduceOp::kSum, "bucket 3"));
      },
      impatient());
  EXPECT_THAT(errors, Each(HasSubstr(waited_impatiently() +
                                     "calls that differ: rank 1 called all_reduce SUM float32[9] "
                                     "'bucket 3' where rank 0 called all_reduce SUM float32[8] "
                                     "'bucket 3'")));
}

TEST_F(NcclFailures, SubgroupsOfDifferentRanksAreNamed) {
  const auto errors =
      run_nccl_ranks_expecting_errors(3, [](const std::shared_ptr<Group>& group, HostDevice&) {
        group->subgroup({0, group->rank() == 1 ? 1 : 2}, "part");
      });
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 called subgroup 'part [0, 1]' where rank 0 called "
                                     "subgroup 'part [0, 2]'")));
}

TEST_F(NcclFailures, SlicesThatAreNoPermutationAreNamed) {
  const auto errors = run_nccl_ranks_expecting_errors(3, [](const std::shared_ptr<Group>& group,
                                                            HostDevice&) {
    const int slice = group->rank() == 2 ? 1 : group->rank();
    wait_on_host(*group->reduce_scatter(at::empty({1}), at::ones({3}), ReduceOp::kSum, "u", slice));
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 2 and rank 1 both asked for slice 1 of reduce_scatter "
                                     "SUM float32[3] 'u'; the ranks' slices must be a "
                                     "permutation")));
}

TEST_F(NcclFailures, SlicesThatChangeAreNamed) {
  const auto errors =
      run_nccl_ranks_expecting_errors(2, [](std::shared_ptr<Group> group, HostDevice&) {
        const auto scatter = [&](int slice) {
          wait_on_host(
              *group->reduce_scatter(at::empty({1}), at::ones({2}), ReduceOp::kSum, "u", slice));
        };
        scatter(group->rank());
        scatter(1 - group->rank());
      });
  EXPECT_THAT(errors, Each(HasSubstr("so duplicate() the group")));
}

TEST_F(NcclFailures, AnAsynchronousErrorOnOneRankReachesAll) {
  const auto errors =
      run_nccl_ranks_expecting_errors(3, [](const std::shared_ptr<Group>& group, HostDevice&) {
        group->barrier();
        if (group->rank() == 1) {
          fake().fail("world: gather lane", 1, static_cast<int>(nccl::Result::kRemoteError));
        }
        call_until_failure(*group);
      });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("[comm] "),
                                 HasSubstr("rank 1 failed: NCCL reports remote process exited or "
                                           "there was a network error: the fake was told so on "
                                           "communicator 'world: gather lane'"))));
  EXPECT_EQ(count_calls("ncclCommAbort"), 6);
}

TEST_F(NcclFailures, ACallThatFailsAtOnceReachesAll) {
  const auto errors =
      run_nccl_ranks_expecting_errors(3, [](const std::shared_ptr<Group>& group, HostDevice&) {
        group->barrier();
        if (group->rank() == 2) {
          fake().fail_next("ncclBroadcast", static_cast<int>(nccl::Result::kSystemError));
          group->broadcast(at::ones({2}), 0, "buffers")->wait();
        }
        wait_for_failure(*group);
      });
  EXPECT_THAT(errors[2], HasSubstr("[comm] broadcast #1 'buffers' on group 'world', rank 2: "));
  EXPECT_THAT(errors, Each(HasSubstr("rank 2 failed: NCCL reports unhandled system error")));
}

TEST_F(NcclFailures, AbortOnOneRankEndsWhatAllWaitFor) {
  std::atomic<int> made{0};
  const auto errors =
      run_nccl_ranks_expecting_errors(3, [&](const std::shared_ptr<Group>& group, HostDevice&) {
        const auto part = duplicate(*group, "part");
        ++made;
        if (group->rank() == 0) {
          while (made < 3) std::this_thread::yield();
          part->abort("rank 0 has had enough");
          wait_for_failure(*group);
        }
        wait_on_host(*group->all_reduce(at::ones({4}), ReduceOp::kSum, "bucket 0"));
      });
  EXPECT_THAT(errors, Each(HasSubstr("rank 0 has had enough")));
  EXPECT_THAT(errors[1], HasSubstr("[comm] all_reduce #1 'bucket 0' on group 'world', rank 1: "));
}

TEST_F(NcclFailures, AFailureEndsCollectivesThatHangOnBothLanes) {
  const auto errors =
      run_nccl_ranks_expecting_errors(3, [](const std::shared_ptr<Group>& group, HostDevice&) {
        group->barrier();
        if (group->rank() == 2) throw std::runtime_error("the model broke");
        const auto gathered = group->all_gather(at::empty({3}), at::ones({1}), "unit 0");
        wait_on_host(*group->all_reduce(at::ones({4}), ReduceOp::kSum, "unit 1"));
      });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(errors[rank], HasSubstr("rank 2 left while an exception unwound"));
  }
  EXPECT_EQ(count_calls("ncclCommAbort"), 6);
}

// NCCL reports an error on a group that rank 0 has left, while a collective of rank 0 hangs. If
// rank 0 aborted that group, it would wait for the collective and not notice that rank 1 gives up.
TEST_F(NcclFailures, AGroupThatIsLeftIsNotAbortedBesideACallInFlight) {
  std::atomic<bool> has_left{false};
  const auto errors =
      run_nccl_ranks_expecting_errors(2, [&](const std::shared_ptr<Group>& group, HostDevice&) {
        auto part = duplicate(*group, "part");
        if (group->rank() == 0) {
          part->all_reduce(at::ones({4}), ReduceOp::kSum, "part");
          part.reset();
          fake().fail("world/part: reduce lane", 0, static_cast<int>(nccl::Result::kSystemError));
          const auto hangs = group->all_reduce(at::ones({4}), ReduceOp::kSum, "alone");
          has_left = true;
          wait_on_host(*hangs);
        }
        while (!has_left) std::this_thread::yield();
        wait_on_host(*part->all_reduce(at::ones({4}), ReduceOp::kSum, "part"));
        while (count_calls("ncclCommFinalize") == 0) std::this_thread::yield();
        group->abort("rank 1 has had enough");
        wait_for_failure(*group);
      });
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 has had enough")));
}

// NCCL gives a communicator to the child of a split even if its parent is aborted meanwhile.
TEST_F(NcclFailures, ASplitUnderWayLeavesNoCommunicator) {
  std::promise<std::shared_ptr<Group>> of_rank_0;
  std::thread aborting([&] {
    const std::shared_ptr<Group> group = of_rank_0.get_future().get();
    while (count_calls("ncclCommSplit") < 4) std::this_thread::yield();  // two made the world
    group->abort("no more");
  });
  const auto errors =
      run_nccl_ranks_expecting_errors(2, [&](const std::shared_ptr<Group>& group, HostDevice&) {
        group->barrier();
        fake().set_questions_before_launch(std::numeric_limits<int>::max());
        if (group->rank() == 0) of_rank_0.set_value(group);
        duplicate(*group, "part");
      });
  aborting.join();
  EXPECT_THAT(errors, Each(HasSubstr("no more")));
}

TEST(NcclCommunicator, ACallBesideAnAbortThatHangsDoesNotHang) {
  fake().reset();
  const auto api = fake_api();
  nccl::UniqueId id;
  api->get_unique_id(&id);
  const auto communicator = std::make_shared<nccl::Communicator>(api, "alone");
  communicator->init(1, 0, id);
  ASSERT_EQ(communicator->poll(), nccl::Result::kSuccess);
  fake().hold_aborts();
  std::thread aborting([&] { nccl::Communicator::abort_together({communicator}); });
  while (fake().live_communicators() > 0) std::this_thread::yield();
  EXPECT_EQ(communicator->call([](nccl::OpaqueComm*) { return nccl::Result::kSuccess; }),
            std::nullopt);
  EXPECT_EQ(communicator->finish(), nccl::Communicator::End::kDestroyed);
  EXPECT_EQ(communicator->error_text(nccl::Result::kSystemError), "unhandled system error");
  fake().release();
  aborting.join();
}

TEST_F(NcclFailures, DestroyedWhileAnExceptionUnwindsItPoisonsTheWorld) {
  const auto errors =
      run_nccl_ranks_expecting_errors(3, [](const std::shared_ptr<Group>& group, HostDevice&) {
        group->barrier();
        if (group->rank() == 1) throw std::runtime_error("the model broke");
        wait_on_host(*group->all_reduce(at::ones({4}), ReduceOp::kSum, "bucket 0"));
      });
  EXPECT_EQ(errors[1], "the model broke");
  for (const int rank : {0, 2}) {
    EXPECT_THAT(errors[rank], HasSubstr("rank 1 left while an exception unwound"));
  }
}

TEST_F(NcclFailures, AFailedWorldStaysFailedWithItsFirstCause) {
  std::atomic<int> finished{0};
  run_nccl_ranks(2, [&](const std::shared_ptr<Group>& group, HostDevice&) {
    at::Tensor tensor = at::ones({3});
    const auto done = group->all_reduce(tensor, ReduceOp::kSum);
    wait_on_host(*done);
    ++finished;
    while (finished < 2) std::this_thread::yield();
    if (group->rank() == 0) group->abort("first");
    EXPECT_THROW(wait_for_failure(*group), CommError);
    group->abort("second");
    EXPECT_NO_THROW(done->wait());  // work that ended well stays successful
    try {
      group->barrier("later");
      ADD_FAILURE();
    } catch (const CommError& error) {
      EXPECT_EQ(error.cause(), "first");
      EXPECT_EQ(error.context().op, "barrier");
      EXPECT_EQ(error.context().tag, "later");
    }
  });
}

TEST_F(NcclFailures, ACleanEndFinalizesAndDestroys) {
  run_nccl_ranks(3, [](const std::shared_ptr<Group>& group, HostDevice&) {
    const auto part = group->subgroup({0, 1}, "part");
    if (part != nullptr) wait_on_host(*part->all_reduce(at::ones({3}), ReduceOp::kSum));
    wait_on_host(*group->all_reduce(at::ones({3}), ReduceOp::kSum));
  });
  EXPECT_EQ(count_calls("ncclCommFinalize"), 10);  // 3 ranks x 2 lanes, 2 ranks x 2 lanes
  EXPECT_EQ(count_calls("ncclCommDestroy"), 10);
  EXPECT_EQ(count_calls("ncclCommAbort"), 0);
}

TEST_F(NcclFailures, DestructorsDoNotWaitForWhatIsInFlight) {
  std::atomic<bool> gone{false};
  run_nccl_ranks(2, [&](const std::shared_ptr<Group>& group, HostDevice&) {
    auto part = duplicate(*group, "part");
    at::Tensor tensor = at::ones({4});
    if (group->rank() == 0) {
      part->all_reduce(tensor, ReduceOp::kSum, "alone");
      part.reset();
      gone = true;
    } else {
      // If the destructor waited, it would wait for this call.
      while (!gone) std::this_thread::yield();
      wait_on_host(*part->all_reduce(tensor, ReduceOp::kSum, "alone"));
      EXPECT_EQ(tensor.sum().item<float>(), 8.0f);
    }
    group->barrier();
  });
  EXPECT_EQ(count_calls("ncclCommAbort"), 0);
}

}  // namespace
}  // namespace tessera::internal
