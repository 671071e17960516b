// Gathers on the host that are started first and waited for later.
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/meeting/job_table.h"
#include "tessera/core/process/error_text.h"
#include "tessera/errors.h"
#include "tessera/process_group.h"
#include "tessera/tests/core/comm/nccl/nccl_ranks.h"

namespace tessera::internal {
namespace {

using nccl::Group;
using ::testing::AllOf;
using ::testing::Each;
using testing::fake;
using ::testing::HasSubstr;
using testing::HostDevice;
using testing::impatient;
using testing::NcclRankOptions;
using testing::run_nccl_ranks;
using testing::run_nccl_ranks_expecting_errors;
using testing::waited_impatiently;

class StoreGather : public ::testing::Test {
 protected:
  void SetUp() override { fake().reset(); }
};

at::Tensor words(int64_t numel, int64_t value) { return at::full({numel}, value, at::kLong); }

/// A table that a test can close for gathers on the host.
class GuardedTable final : public JobTable {
 public:
  std::atomic<bool> is_closed{false};

  void set(const std::string& key, const std::string& text) override {
    look_at("set " + key);
    JobTable::set(key, text);
  }
  std::optional<std::string> get(const std::string& key) override {
    look_at("get " + key);
    return JobTable::get(key);
  }

 private:
  void look_at(const std::string& what) const {
    if (is_closed && what.find("nccl/host") != std::string::npos) {
      throw std::runtime_error("the table was used: " + what);
    }
  }
};

NcclRankOptions over(const std::shared_ptr<GuardedTable>& table) {
  NcclRankOptions options;
  options.make = [table](nccl::WorldOptions world) {
    world.table = table;
    return nccl::make_world(std::move(world));
  };
  return options;
}

TEST_F(StoreGather, ReturnsBeforeThePeersHaveCome) {
  for (const int size : {1, 2, 3}) {
    std::atomic<int> started{0};
    run_nccl_ranks(size, [&](std::shared_ptr<Group> group, HostDevice& device) {
      for (int round = 1; round <= 4; ++round) {
        const at::Tensor all = words(2 * size, -1);
        const at::Tensor own = words(2, 10 * round + group->rank());
        // The last rank starts only after all others have: a call that waited would never end.
        while (group->rank() == size - 1 && started < round * (size - 1)) std::this_thread::yield();
        const auto work = group->start_gather_on_host(all, own, "vote");
        ++started;
        if (group->rank() == size - 1) --started;
        own.fill_(-2);  // was copied in the call
        const at::Tensor sum = at::ones({3});
        group->all_reduce(sum, ReduceOp::kSum, "between")->wait();
        work->wait();
        work->wait();
        device.synchronize();
        EXPECT_TRUE(work->is_completed());
        for (int rank = 0; rank < size; ++rank) {
          EXPECT_EQ(all[2 * rank + 1].item<int64_t>(), 10 * round + rank);
        }
      }
      const at::Tensor in_place = words(size, group->rank());
      group->start_gather_on_host(in_place, in_place.narrow(0, group->rank(), 1), "vote")->wait();
      EXPECT_EQ(in_place.sum().item<int64_t>(), size * (size - 1) / 2);
    });
  }
}

TEST_F(StoreGather, ARankAloneAsksNoTable) {
  const auto table = std::make_shared<GuardedTable>();
  run_nccl_ranks(
      1,
      [&](std::shared_ptr<Group> group, HostDevice&) {
        table->is_closed = true;
        const at::Tensor all = words(1, 0);
        group->all_gather_on_host(all, words(1, 3), "vote");
        EXPECT_EQ(all.item<int64_t>(), 3);
        group->start_gather_on_host(all, words(1, 4), "vote")->wait();
        EXPECT_EQ(all.item<int64_t>(), 4);
      },
      over(table));
}

TEST_F(StoreGather, ControlRanksThatMeetUseTheTable) {
  const auto table = std::make_shared<GuardedTable>();
  const auto errors = run_nccl_ranks_expecting_errors(
      2,
      [&](std::shared_ptr<Group> group, HostDevice&) {
        table->is_closed = true;
        group->all_gather_on_host(words(2, 0), words(1, 3), "vote");
      },
      over(table));
  EXPECT_THAT(errors[0], HasSubstr("the table was used"));
}

TEST_F(StoreGather, NamesCallsThatDifferWhenItIsWaitedFor) {
  const auto errors =
      run_nccl_ranks_expecting_errors(3, [](std::shared_ptr<Group> group, HostDevice&) {
        group->start_gather_on_host(words(3, 0), words(1, 0), "same")->wait();
        const int64_t numel = group->rank() == 2 ? 3 : 2;
        const auto work = group->start_gather_on_host(words(3 * numel, 0), words(numel, 0), "vote");
        work->wait();
      });
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("[comm] all_gather #1 'vote' on group 'world', rank "),
                         HasSubstr("rank 2 called all_gather int64[3] 'vote' where rank 0 called "
                                   "all_gather int64[2] 'vote'"))));
}

TEST_F(StoreGather, TimesOutFromItsWaitOn) {
  const auto errors = run_nccl_ranks_expecting_errors(
      3,
      [](std::shared_ptr<Group> group, HostDevice&) {
        group->all_gather_bytes("here", "first");
        if (group->rank() == 1) {  // stays in the group, and does not join the gather
          while (group->make_shared_buffer(1, "look") == nullptr) std::this_thread::yield();
        }
        group->start_gather_on_host(words(3, 0), words(1, 0), "vote")->wait();
      },
      impatient());
  for (const int rank : {0, 2}) {
    EXPECT_THAT(errors[rank],
                AllOf(HasSubstr("[comm] all_gather #2 'vote' on group 'world', rank " +
                                std::to_string(rank)),
                      HasSubstr(waited_impatiently() + "rank 1, which has begun 2")));
  }
}

TEST_F(StoreGather, IsNotLateBeforeAnyoneWaits) {
  run_nccl_ranks(
      2,
      [](std::shared_ptr<Group> group, HostDevice&) {
        const at::Tensor all = words(2, 0);
        const auto work = group->start_gather_on_host(all, words(1, 1 + group->rank()), "vote");
        std::this_thread::sleep_for(5 * impatient().timeout / 4);  // more than the time-out
        work->wait();
        EXPECT_EQ(all.sum().item<int64_t>(), 3);
      },
      impatient());
}

TEST_F(StoreGather, ADroppedOneLeavesTheChannelUsable) {
  for (const int dropper : {0, 1, 3}) {  // 3: all of them
    run_nccl_ranks(
        3,
        [&](std::shared_ptr<Group> group, HostDevice&) {
          for (int round = 0; round < 5; ++round) {
            const at::Tensor all = words(3, 0);
            const auto work = group->start_gather_on_host(all, words(1, round), "vote");
            if (dropper != 3 && group->rank() != dropper) {
              work->wait();
              EXPECT_EQ(all.sum().item<int64_t>(), 3 * round);
            }
          }
          EXPECT_THAT(group->all_gather_bytes("end", "end"), Each("end"));
          // No rank is late for the dropped gathers.
          std::this_thread::sleep_for(5 * impatient().timeout / 4);
          group->barrier("after");
        },
        impatient());
  }
}

TEST_F(StoreGather, OneAtATime) {
  run_nccl_ranks(2, [](std::shared_ptr<Group> group, HostDevice&) {
    const at::Tensor all = words(2, 0);
    const auto work = group->start_gather_on_host(all, words(1, 1), "vote");
    for (const bool starts : {false, true}) {
      try {
        if (starts) {
          group->start_gather_on_host(all, words(1, 1), "next");
        } else {
          group->all_gather_on_host(all, words(1, 1), "next");
        }
        ADD_FAILURE();
      } catch (const c10::Error& error) {
        EXPECT_THAT(error_text(error), HasSubstr("while another gather on the host is open"));
      }
    }
    work->wait();
    group->all_gather_on_host(all, words(1, 2), "next");
    EXPECT_EQ(all.sum().item<int64_t>(), 4);
  });
}

TEST_F(StoreGather, OutlivesItsGroup) {
  // Both ranks are still there: their parts are exchanged without the group.
  run_nccl_ranks(2, [](std::shared_ptr<Group> group, HostDevice&) {
    const auto part = group->subgroup({0, 1}, "part");
    const at::Tensor all = words(2, 0);
    auto part_owner = part;
    const auto work = part->start_gather_on_host(all, words(1, 1 + group->rank()), "vote");
    part_owner.reset();
    work->wait();
    EXPECT_EQ(all.sum().item<int64_t>(), 3);
  });
  const auto errors = run_nccl_ranks_expecting_errors(
      2,
      [](std::shared_ptr<Group> group, HostDevice&) {
        if (group->rank() == 1) return;
        const auto work = group->start_gather_on_host(words(2, 0), words(1, 0), "vote");
        group.reset();
        work->wait();
      },
      impatient());
  EXPECT_THAT(errors[0], HasSubstr(waited_impatiently() + "rank 1, which left the group"));
}

TEST_F(StoreGather, EndsWhenAnotherRankGivesUp) {
  const auto errors =
      run_nccl_ranks_expecting_errors(3, [](std::shared_ptr<Group> group, HostDevice&) {
        const auto work = group->start_gather_on_host(words(3, 0), words(1, 0), "vote");
        if (group->rank() == 2) throw std::runtime_error("no more memory");
        work->wait();
        // Rank 2's part was there; the next gather's is not.
        group->start_gather_on_host(words(3, 0), words(1, 0), "next")->wait();
      });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(errors[rank], HasSubstr("rank 2 left while an exception unwound"));
  }
}

}  // namespace
}  // namespace tessera::internal
