// Messages between hosts' processes: they use the table, never NCCL; they are compared, and never
// wait for ever.
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/comm/meeting/job_table.h"
#include "tessera/core/step/host_all_gather.h"
#include "tessera/errors.h"
#include "tessera/process_group.h"
#include "tessera/tests/core/comm/nccl/nccl_ranks.h"

namespace tessera::internal {
namespace {

using nccl::Group;
using ::testing::AllOf;
using testing::count_calls;
using ::testing::Each;
using testing::fake;
using ::testing::HasSubstr;
using testing::HostDevice;
using testing::impatient;
using testing::NcclRankOptions;
using testing::run_nccl_ranks;
using testing::run_nccl_ranks_expecting_errors;
using testing::waited_impatiently;

class ControlChannel : public ::testing::Test {
 protected:
  void SetUp() override { fake().reset(); }
};

int count_collectives() {
  return count_calls("ncclAllGather") + count_calls("ncclAllReduce") +
         count_calls("ncclBroadcast") + count_calls("ncclReduceScatter");
}

std::string text_of(int rank, int round) {
  return std::string(static_cast<size_t>(rank * 1000 + round), static_cast<char>('a' + rank));
}

TEST_F(ControlChannel, CarriesTextsWordsAndFingerprintsWithoutNccl) {
  for (const int size : {1, 2, 3}) {
    fake().reset();
    run_nccl_ranks(size, [](std::shared_ptr<Group> group, HostDevice&) {
      for (int round = 0; round < 5; ++round) {
        const auto texts = group->all_gather_bytes(text_of(group->rank(), round), "texts");
        ASSERT_EQ(static_cast<int>(texts.size()), group->size());
        for (int rank = 0; rank < group->size(); ++rank) {
          EXPECT_EQ(texts[rank], text_of(rank, round));
        }
      }
      EXPECT_THAT(group->all_gather_bytes("", "silence"), Each(""));
      require_equal(*group, {"a", "", "c"}, "same");
      refuse_on_all_ranks(*group, "", "nothing");

      HostAllGather all_gather(*group, 3);
      for (int64_t round = 0; round < 5; ++round) {
        all_gather.mine()[2] = group->rank() + 10 * round;
        all_gather.exchange("vote");
        for (int rank = 0; rank < group->size(); ++rank) {
          EXPECT_EQ(all_gather.of(rank)[2], rank + 10 * round);
        }
      }
      const at::Tensor nothing = at::empty({0});
      group->all_gather_on_host(nothing, nothing, "nothing");
    });
    EXPECT_EQ(count_collectives(), 0) << size;
  }
}

/// Among collectives on the device, and in subgroups, each of which has its own channel.
TEST_F(ControlChannel, KeepsItsPlaceAmongCollectives) {
  run_nccl_ranks(3, [](std::shared_ptr<Group> group, HostDevice& device) {
    const auto part = group->subgroup({0, 2}, "ends");
    for (int round = 0; round < 4; ++round) {
      at::Tensor sum = at::ones({5});
      const auto work = group->all_reduce(sum, ReduceOp::kSum, "bucket 0");
      const auto all = group->all_gather_bytes(std::to_string(group->rank()), "all");
      EXPECT_THAT(all, ::testing::ElementsAre("0", "1", "2"));
      if (part != nullptr) {
        const auto some = part->all_gather_bytes(std::to_string(group->rank()), "some");
        EXPECT_THAT(some, ::testing::ElementsAre("0", "2"));
      }
      work->wait();
      device.synchronize();
      EXPECT_EQ(sum.sum().item<float>(), 15.0f);
    }
  });
}

/// Counts its keys.
class CountedTable final : public JobTable {
 public:
  void set(const std::string& key, const std::string& text) override {
    JobTable::set(key, text);
    const std::lock_guard lock(mutex_);
    keys_.insert(key);
  }
  void erase(const std::string& key) override {
    JobTable::erase(key);
    const std::lock_guard lock(mutex_);
    keys_.erase(key);
  }
  int64_t size() {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(keys_.size());
  }

 private:
  std::mutex mutex_;
  std::set<std::string> keys_;
};

TEST_F(ControlChannel, LeavesNothingInTheTableThatGrows) {
  const auto table = std::make_shared<CountedTable>();
  NcclRankOptions options;
  options.make = [&](nccl::WorldOptions world) {
    world.table = table;
    return nccl::make_world(std::move(world));
  };
  std::atomic<int64_t> early{0};
  std::atomic<int64_t> late{0};
  run_nccl_ranks(
      3,
      [&](std::shared_ptr<Group> group, HostDevice&) {
        const auto count = [&](std::atomic<int64_t>& keys) {
          group->barrier();
          if (group->rank() == 0) keys = table->size();
          group->barrier();
        };
        for (int round = 0; round < 3; ++round) group->all_gather_bytes("text", "early");
        count(early);
        for (int round = 0; round < 50; ++round) group->all_gather_bytes("text", "late");
        count(late);
      },
      options);
  EXPECT_GT(early, 0);
  EXPECT_EQ(late, early);
}

TEST_F(ControlChannel, NamesFingerprintsThatDiffer) {
  const auto errors = run_nccl_ranks_expecting_errors(3, [](std::shared_ptr<Group> group,
                                                            HostDevice&) {
    require_equal(*group, {"weight", group->rank() == 1 ? "bias [4]" : "bias [3]"}, "parallelize");
  });
  EXPECT_THAT(errors, Each(HasSubstr("[parallelize] rank 1 differs from rank 0 at entry 1: "
                                     "'bias [4]' vs 'bias [3]'")));
}

TEST_F(ControlChannel, NamesCallsThatDifferAtOnce) {
  const auto errors =
      run_nccl_ranks_expecting_errors(3, [](std::shared_ptr<Group> group, HostDevice&) {
        group->all_gather_on_host(at::zeros({6}, at::kLong), at::zeros({2}, at::kLong), "same");
        const int64_t numel = group->rank() == 2 ? 3 : 2;
        group->all_gather_on_host(at::zeros({3 * numel}, at::kLong), at::zeros({numel}, at::kLong),
                                  "vote");
      });
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("[comm] all_gather #1 'vote' on group 'world', rank "),
                         HasSubstr("rank 2 called all_gather int64[3] 'vote' where rank 0 called "
                                   "all_gather int64[2] 'vote'"))));
}

TEST_F(ControlChannel, TimesOutAndNamesRankOpSequenceAndTag) {
  const auto errors = run_nccl_ranks_expecting_errors(
      3,
      [](std::shared_ptr<Group> group, HostDevice&) {
        group->all_gather_bytes("here", "first");
        if (group->rank() == 1) {
          while (group->make_shared_buffer(1, "look") == nullptr) std::this_thread::yield();
        }
        group->all_gather_bytes("here", "misuse");
      },
      impatient());
  for (const int rank : {0, 2}) {
    EXPECT_THAT(errors[rank],
                AllOf(HasSubstr("[comm] all_gather #2 'misuse' on group 'world', rank " +
                                std::to_string(rank)),
                      HasSubstr(waited_impatiently() + "rank 1, which has begun 2 collectives")));
  }
  EXPECT_THAT(errors[1], HasSubstr(waited_impatiently() + "rank 1"));
}

TEST_F(ControlChannel, EndsWhenAnotherRankGivesUp) {
  const auto errors =
      run_nccl_ranks_expecting_errors(3, [](std::shared_ptr<Group> group, HostDevice&) {
        if (group->rank() == 2) throw std::runtime_error("no more memory");
        group->all_gather_bytes("here", "vote");
      });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(errors[rank], AllOf(HasSubstr("[comm] all_gather #0 'vote' on group 'world'"),
                                    HasSubstr("rank 2 left while an exception unwound")));
  }
}

TEST_F(ControlChannel, RefusesMisuse) {
  run_nccl_ranks(2, [](std::shared_ptr<Group> group, HostDevice&) {
    const auto message = [&](const at::Tensor& output, const at::Tensor& input) {
      try {
        group->all_gather_on_host(output, input);
      } catch (const c10::Error& error) {
        return std::string(error.what_without_backtrace());
      }
      return std::string("nothing");
    };
    EXPECT_THAT(message(at::zeros({3}), at::zeros({2})),
                HasSubstr("[comm] all_gather: got output of 3 and input of 2 elements"));
    EXPECT_THAT(message(at::zeros({4}, at::TensorOptions().device(at::kMeta)), at::zeros({2})),
                HasSubstr("[comm] all_gather: got output on meta, expected it on cpu"));
  });
}

/// A device whose tensors are not in host memory.
class ElsewhereDevice final : public Device {
 public:
  at::Device torch_device() const override { return at::kMeta; }
  std::shared_ptr<Stream> current_stream() override { return host_.current_stream(); }
  std::shared_ptr<Stream> make_stream(Priority priority) override {
    return host_.make_stream(priority);
  }
  std::shared_ptr<Event> make_event() override { return host_.make_event(); }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return at::empty({numel}, at::TensorOptions(dtype).device(at::kMeta));
  }
  at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) override {
    return host_.allocate(numel, dtype);
  }

 private:
  HostDevice host_;
};

TEST_F(ControlChannel, CarriesHostTensorsWhereCollectivesTakeOthers) {
  NcclRankOptions options;
  options.make = [](nccl::WorldOptions world) {
    world.device = std::make_shared<ElsewhereDevice>();
    return nccl::make_world(std::move(world));
  };
  run_nccl_ranks(
      2,
      [](std::shared_ptr<Group> group, HostDevice&) {
        EXPECT_EQ(group->device(), at::Device(at::kMeta));
        try {
          group->all_reduce(at::zeros({2}), ReduceOp::kSum, "bucket 0");
          ADD_FAILURE();
        } catch (const c10::Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("[comm] all_reduce: got tensor on cpu, expected it "
                                              "on meta, where this rank's tensors of the group "
                                              "lie; move it there first"));
        }
        EXPECT_THROW(group->all_gather(at::zeros({4}), at::zeros({2})), c10::Error);
        EXPECT_THROW(group->broadcast(at::zeros({4}), 0), c10::Error);
        EXPECT_THROW(group->reduce_scatter(at::zeros({2}), at::zeros({4}), ReduceOp::kSum),
                     c10::Error);
        HostAllGather all_gather(*group, 1);
        all_gather.mine()[0] = group->rank() + 1;
        all_gather.exchange("vote");
        EXPECT_EQ(all_gather.of(0)[0] + all_gather.of(1)[0], 3);
      },
      options);
}

}  // namespace
}  // namespace tessera::internal
