// Everything that can go wrong between ranks that are threads: one cause, on every rank, and never
// a hang.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/groups/loopback_group.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/core/process/job_page.h"
#include "tessera/core/process/progress_report.h"
#include "tessera/errors.h"
#include "tessera/process_group.h"
#include "tessera/tests/core/comm/groups/call_differences.h"
#include "tessera/tests/support/file_size_limit.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::FileSizeLimit;
using ::testing::HasSubstr;
using testing::RankThreadOptions;
using testing::run_ranks;
using testing::run_ranks_expecting_errors;
using Lane = ProcessGroupOptions::Lane;

// Nobody else waits for it: what it catches is over.
TEST(Failures, ARankAloneGoesOnAfterAnException) {
  const auto world = std::make_shared<LoopbackGroup>();
  EXPECT_THROW(
      {
        const auto group = world->subgroup({0}, "engine");
        group->barrier("before");
        throw std::runtime_error("caught");
      },
      std::runtime_error);
  world->barrier("after");
  world->subgroup({0}, "engine again")->barrier("after");
}

// Note [Failure]: rank 0 fails the world after a call that the others have done their parts of, and
// have not seen the end of. It ends well there, too, and what they call next fails.
TEST(Failures, ACallThatTheAuthorOfTheFailureHadBegunEndsWell) {
  std::latch is_begun(1), are_all_begun(3), are_parts_done(3), has_failed(3);
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> world) {
    at::Tensor tensor = world->allocate(5, at::kFloat).fill_(1.0);
    if (world->rank() != 0) is_begun.wait();
    const auto work = world->check_and_run({.op = Op::kAllReduce,
                                            .output = tensor,
                                            .input = tensor,
                                            .posted = true,
                                            .tag = "begun by all"});
    if (world->rank() == 0) is_begun.count_down();
    are_all_begun.arrive_and_wait();
    if (world->rank() != 0) {
      EXPECT_FALSE(work->is_completed());  // rank 0's part is missing
    }
    are_parts_done.arrive_and_wait();
    if (world->rank() == 0) {
      work->wait();
      world->abort("enough");
    }
    has_failed.arrive_and_wait();
    EXPECT_NO_THROW(work->wait());
    EXPECT_TRUE(at::equal(tensor, at::full({5}, 3.0)));
    EXPECT_THROW(world->barrier("after"), CommError);
  });
}

TEST(Failures, EveryDifferenceBetweenCallsIsNamedOnEveryRank) {
  for (const Lane lane : {Lane::kInline, Lane::kThread}) {
    for (const testing::CallDifference& difference : testing::call_differences(3)) {
      const auto errors = run_ranks_expecting_errors(
          3,
          [&](std::shared_ptr<ProcessGroup> group) {
            (group->rank() == 1 ? difference.other : difference.usual)(*group);
          },
          {.lane = lane});
      EXPECT_THAT(errors, Each(HasSubstr(difference.text))) << difference.name;
    }
  }
}

TEST(Failures, TagsThatDifferOnlyAfterTheStoredPartDiffer) {
  const auto errors = run_ranks_expecting_errors(2, [](std::shared_ptr<ProcessGroup> group) {
    group->barrier(absl::StrCat(std::string(200, 'x'), group->rank()));
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 called barrier 'xxx")));
}

TEST(Failures, AMismatchTouchesNoData) {
  const auto errors = run_ranks_expecting_errors(2, [](std::shared_ptr<ProcessGroup> group) {
    at::Tensor tensor = group->allocate(100, at::kFloat);
    tensor.fill_(group->rank());
    try {
      group->all_reduce(tensor.narrow(0, 0, 100 - group->rank()), ReduceOp::kSum)->wait();
    } catch (const CommError& error) {
      EXPECT_EQ(tensor.sum().item<float>(), 100.0f * group->rank());
      EXPECT_EQ(error.context().op, "all_reduce");
      EXPECT_EQ(error.context().rank, group->rank());
      EXPECT_EQ(error.context().group, "world");
      throw;
    }
  });
  EXPECT_THAT(errors, Each(HasSubstr("float32[99]")));
}

TEST(Failures, AFailedGroupRethrowsItsFirstCauseAndOthersGoOn) {
  const auto errors = run_ranks_expecting_errors(3, [](std::shared_ptr<ProcessGroup> world) {
    auto other = duplicate(*world, "other");
    std::string first;
    try {
      world->barrier(absl::StrCat("by ", world->rank() == 2 ? "two" : "the rest"));
    } catch (const CommError& error) {
      first = error.cause();
    }
    for (int i = 0; i < 3; ++i) {
      at::Tensor tensor = at::ones({1});
      other->all_reduce(tensor, ReduceOp::kSum)->wait();
      EXPECT_EQ(tensor.item<float>(), 3.0f);
      try {
        world->all_reduce(tensor, ReduceOp::kSum)->wait();
        ADD_FAILURE() << "a poisoned group went on";
      } catch (const CommError& error) {
        EXPECT_EQ(error.cause(), first);
      }
    }
    throw std::runtime_error(first);
  });
  EXPECT_THAT(errors,
              Each("rank 2 called barrier 'by two' where rank 0 called barrier 'by the rest'"));
}

TEST(Failures, ATimeOutNamesTheMissingRanks) {
  constexpr auto kLimit = std::chrono::milliseconds(1500);
  std::promise<void> done;
  auto gate = done.get_future().share();
  std::atomic<int> failed{0};
  const auto errors = run_ranks_expecting_errors(4,
                                                 [&](std::shared_ptr<ProcessGroup> world) {
                                                   world->barrier("fine");
                                                   if (world->rank() == 1 || world->rank() == 3) {
                                                     gate.wait();
                                                     world->barrier("late");
                                                   }
                                                   try {
                                                     world->barrier("late");
                                                   } catch (const CommError&) {
                                                     if (++failed == 2) done.set_value();
                                                     throw;
                                                   }
                                                 },
                                                 {.timeout = kLimit});
  const std::string place = absl::StrCat(" (pid ", ::getpid(), ")");
  EXPECT_THAT(errors,
              Each(HasSubstr(absl::StrCat(" waited ", kLimit.count(), " ms for rank 1", place,
                                          ", which has finished 1 collective, rank 3", place,
                                          ", which has finished 1 collective"))));
}

TEST(Failures, ARankThatLeftIsNamed) {
  for (const Lane lane : {Lane::kInline, Lane::kThread}) {
    const auto errors = run_ranks_expecting_errors(
        3,
        [](std::shared_ptr<ProcessGroup> world) {
          for (int i = 0; i < 4; ++i) world->barrier();
          if (world->rank() == 2) return;
          world->all_reduce(at::zeros({1}), ReduceOp::kSum, "after")->wait();
        },
        {.lane = lane});
    const auto text = HasSubstr("rank 2 left the group after 4 collectives");
    EXPECT_THAT(errors, ElementsAre(text, text, ""));
  }
}

TEST(Failures, ARankOfASubgroupIsNamedByItsNumberInTheWorld) {
  const auto errors = run_ranks_expecting_errors(4, [](std::shared_ptr<ProcessGroup> world) {
    auto upper = world->subgroup({2, 3}, "upper");
    if (world->rank() == 2) upper->barrier();
  });
  EXPECT_THAT(errors[2], HasSubstr(", rank 0: rank 3 of the world left the group after 0"));
}

TEST(Failures, AnExceptionThatUnwindsPoisonsTheWholeWorld) {
  for (const Lane lane : {Lane::kInline, Lane::kThread}) {
    const auto errors =
        run_ranks_expecting_errors(3,
                                   [](std::shared_ptr<ProcessGroup> world) {
                                     auto other = duplicate(*world, "other");
                                     if (world->rank() == 1) throw std::runtime_error("bad batch");
                                     (world->rank() == 0 ? world : other)->barrier("step");
                                   },
                                   {.lane = lane});
    const auto text = HasSubstr("rank 1 left while an exception unwound");
    EXPECT_THAT(errors, ElementsAre(text, "bad batch", text));
  }
}

// Locals are destroyed in the opposite order: the pair, which has failed, is there when an
// exception destroys the other group, and with the first of its ranks that unwinds the world fails.
TEST(Failures, ARankThatLeavesBecauseAGroupHasFailedGivesItsCauseInTheOthers) {
  for (const Lane lane : {Lane::kInline, Lane::kThread}) {
    const auto errors =
        run_ranks_expecting_errors(3,
                                   [](std::shared_ptr<ProcessGroup> world) {
                                     const auto pair = world->subgroup({0, 1}, "pair");
                                     const auto other = duplicate(*world, "other");
                                     if (pair != nullptr)
                                       pair->barrier(world->rank() == 0 ? "a" : "b");
                                     other->barrier("all");
                                   },
                                   {.lane = lane});
    EXPECT_THAT(errors, Each(HasSubstr("where rank 0 called barrier 'a'")));
  }
}

TEST(Failures, AnAbortReachesAllGroupsOfTheWorldAndItsFirstCauseWins) {
  const auto errors = run_ranks_expecting_errors(3, [](std::shared_ptr<ProcessGroup> world) {
    auto other = duplicate(*world, "other");
    if (world->rank() == 2) {
      other->abort("rank 2 saw a NaN");
      other->abort("a second thought");
    }
    (world->rank() == 0 ? world : other)->barrier("step");
  });
  EXPECT_THAT(errors, Each(HasSubstr(": rank 2 saw a NaN")));
}

TEST(Failures, DestroyingAGroupWithWorkInFlightNeitherBlocksNorLosesTheWait) {
  std::atomic<int> cancelled{0};
  run_ranks_expecting_errors(2,
                             [&](std::shared_ptr<ProcessGroup> world) {
                               if (world->rank() == 1) return;
                               std::vector<std::shared_ptr<Work>> works;
                               for (int i = 0; i < 3; ++i)
                                 works.push_back(world->all_reduce(at::zeros({5}), ReduceOp::kSum));
                               world.reset();
                               for (auto& work : works) {
                                 try {
                                   work->wait();
                                 } catch (const CommError&) {
                                   ++cancelled;
                                 }
                               }
                             },
                             {.lane = Lane::kThread});
  EXPECT_EQ(cancelled, 3);
}

TEST(Failures, NoSpaceIsAnErrorThatNamesTheSize) {
  const testing::NoFileSizeSignal no_signal;
  const FileSizeLimit limit(8 << 20);
  const auto errors = run_ranks_expecting_errors(
      2, [](std::shared_ptr<ProcessGroup> world) { world->allocate(4 << 20, at::kFloat); });
  EXPECT_THAT(errors, Each(HasSubstr("[comm] shared memory: got no space for 16777216 bytes")));
}

// Staging memory is taken inside a collective: the others must learn why it cannot go on.
TEST(Failures, NoSpaceForStagingIsEveryRanksError) {
  const testing::NoFileSizeSignal no_signal;
  const FileSizeLimit limit(128 << 10);
  const auto errors = run_ranks_expecting_errors(2, [](std::shared_ptr<ProcessGroup> world) {
    if (world->rank() == 1) {
      world->all_reduce(at::zeros({10}), ReduceOp::kSum)->wait();
    } else {
      world->barrier();
    }
  });
  EXPECT_THAT(errors,
              Each(HasSubstr("rank 1 failed: [comm] shared memory: got no space for 1048576")));
}

TEST(Failures, ARankNumberGivenTwiceIsNamedOnEveryRank) {
  const auto errors = run_ranks_expecting_errors(
      3, [](std::shared_ptr<ProcessGroup>) { FAIL() << "the ranks met"; },
      {.rank_of = [](int thread) { return std::min(thread, 1); }});
  EXPECT_THAT(errors, Each(HasSubstr("RANK 1 was given twice, to pid ")));
}

TEST(Failures, MissingRanksAreNamedWhenTheyDoNotCome) {
  constexpr auto kLimit = std::chrono::milliseconds(1500);
  const auto errors = run_ranks_expecting_errors(
      2, [](std::shared_ptr<ProcessGroup>) { FAIL() << "the ranks met"; },
      {.timeout = kLimit, .world_size_of = [](int) { return 4; }});
  EXPECT_THAT(errors, Each(HasSubstr(absl::StrCat("timed out after ", kLimit.count(),
                                                  " ms: rank 2, rank 3 did not come"))));
}

TEST(Failures, WorldSizesThatDifferAreNamedOnEveryRank) {
  const auto errors = run_ranks_expecting_errors(
      3, [](std::shared_ptr<ProcessGroup>) { FAIL() << "the ranks met"; },
      {.world_size_of = [](int thread) { return thread == 1 ? 4 : 3; }});
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 has WORLD_SIZE 4 where rank 0 has 3")));
}

/// This process as rank 0 of a job of two: what it has noted since it was made.
class FailureNotes : public ::testing::Test {
 protected:
  FailureNotes() {
    const std::pair<const char*, std::string> variables[] = {
        {"TESSERA_JOB_PAGE", page().address()}, {"RANK", "0"}, {"WORLD_SIZE", "2"}};
    for (const auto& [name, value] : variables) ::setenv(name, value.c_str(), 1);
    report_failures(0, 2);
    for (const auto& [name, value] : variables) ::unsetenv(name);
  }

  static JobPage& page() {
    static const auto made = *JobPage::create(2);  // a process finds its page once
    return *made;
  }
  static FailureNote note() { return page().note(0).value_or(FailureNote()); }
};

TEST_F(FailureNotes, NameThisRankOrAnother) {
  report_failure(1, "rank 1 (pid 17) died");
  EXPECT_EQ(note().culprit, 1);
  EXPECT_EQ(note().text, "rank 1 (pid 17) died");
  report_failures(0, 2);
  report_failure(-1, "out of data");
  EXPECT_EQ(note().culprit, 0);
  EXPECT_EQ(note().text, "out of data");
}

TEST_F(FailureNotes, AreNoneWhereAWorldNumbersItsRanksDifferently) {
  report_failures(1, 2);
  report_failure(1, "rank 1 (pid 17) died");
  EXPECT_TRUE(note().text.empty());
}

TEST_F(FailureNotes, SayHowFarTheJobHasCome) {
  report_step(3);
  report_saved_step(2);
  EXPECT_EQ(page().progress(0).step(), 3);
  EXPECT_EQ(page().saved_step(), 2);
}

TEST_F(FailureNotes, OfAnExceptionInTheMiddleOfTrainingSaySo) {
  run_ranks_expecting_errors(2, [](std::shared_ptr<ProcessGroup> world) {
    world->barrier("step");
    if (world->rank() == 1) throw std::runtime_error("bad batch");
    world->barrier("next");
  });
  EXPECT_EQ(note().text, "rank 1 left while an exception unwound");
}

}  // namespace
}  // namespace tessera::internal
