// Memory from NCCL: registered, in windows, and gathered by copy engines.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/process/error_text.h"
#include "tessera/errors.h"
#include "tessera/tests/core/comm/nccl/nccl_ranks.h"

namespace tessera::internal {
namespace {

using nccl::Group;
using nccl::wait_on_host;
using ::testing::AllOf;
using testing::count_calls;
using ::testing::Each;
using testing::fake;
using testing::FakeCall;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::NcclRankOptions;
using testing::run_nccl_ranks;
using testing::run_nccl_ranks_expecting_errors;
using testing::wait_for_failure;
using Memory = NcclOptions::Memory;
using testing::HostDevice;

constexpr auto kDeadline = std::chrono::seconds(30);

void await_no_memory() {
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (fake().live_memory() > 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      std::fprintf(stderr, "[test] %d blocks are never freed\n", fake().live_memory());
      std::abort();
    }
    std::this_thread::yield();
  }
}

class NcclMemory : public ::testing::Test {
 protected:
  void SetUp() override { fake().reset(); }
  void TearDown() override {
    await_no_memory();
    EXPECT_THAT(fake().complaints(), IsEmpty());
  }
};

/// The control tests of the fake leave complaints behind.
class FakeNcclMemory : public ::testing::Test {
 protected:
  void SetUp() override { fake().reset(); }
  void TearDown() override { fake().reset(); }
};

NcclRankOptions with(NcclOptions nccl, NcclRankOptions options = {}) {
  options.make = [nccl](nccl::WorldOptions world) {
    world.nccl = nccl;
    return nccl::make_world(std::move(world));
  };
  return options;
}

std::vector<FakeCall> calls_of(const std::string& function) {
  std::vector<FakeCall> found;
  for (const FakeCall& call : fake().calls()) {
    if (call.function == function) found.push_back(call);
  }
  return found;
}

/// Gathers in place and reduces in memory from allocate(), and checks the results.
void use(const std::shared_ptr<Group>& group, int64_t numel) {
  const int size = group->size();
  const at::Tensor all = group->allocate(size * numel, at::kBFloat16);
  const at::Tensor sums = group->allocate(size * numel, at::kFloat);
  const at::Tensor own = all.narrow(0, group->rank() * numel, numel);
  own.fill_(group->rank() + 1);
  wait_on_host(*group->all_gather(all, own, "unit"));
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_EQ(all[rank * numel].item<float>(), rank + 1.0f);
  }
  sums.fill_(1.0);
  wait_on_host(*group->reduce_scatter(sums.narrow(0, group->rank() * numel, numel), sums,
                                      ReduceOp::kSum, "bucket"));
  EXPECT_EQ(sums[group->rank() * numel].item<float>(), static_cast<float>(size));
  sums.fill_(2.0);
  wait_on_host(*group->all_reduce(sums, ReduceOp::kAvg, "bucket"));
  EXPECT_EQ(sums[0].item<float>(), 2.0f);
}

TEST_F(NcclMemory, ByDefaultIsNotNccls) {
  run_nccl_ranks(2, [](std::shared_ptr<Group> group, HostDevice&) { use(group, 5); });
  EXPECT_EQ(count_calls("ncclMemAlloc"), 0);
  for (const FakeCall& call : calls_of("ncclAllGather")) EXPECT_FALSE(call.is_in_window);
}

TEST_F(NcclMemory, IsRegisteredWithBothLanesByEachRankForItself) {
  for (const int size : {1, 2, 3}) {
    fake().reset();
    run_nccl_ranks(
        size,
        [](std::shared_ptr<Group> group, HostDevice&) {
          use(group, 7);
          if (group->rank() == 0) {  // alone
            EXPECT_EQ(group->allocate(3, at::kLong).numel(), 3);
            EXPECT_EQ(group->allocate(0, at::kLong).numel(), 0);
          }
          const auto part = group->subgroup({group->size() - 1}, "part");
          if (part != nullptr) use(std::dynamic_pointer_cast<Group>(part), 3);
          group->barrier("end");
        },
        with({.memory = Memory::kRegistered}));
    await_no_memory();
    EXPECT_EQ(count_calls("ncclMemAlloc"), 2 * size + 3);
    EXPECT_EQ(count_calls("ncclMemFree"), 2 * size + 3);
    EXPECT_EQ(count_calls("ncclCommRegister"), 2 * (2 * size + 3));
    EXPECT_EQ(count_calls("ncclCommDeregister"), 2 * (2 * size + 3));
  }
}

TEST_F(NcclMemory, WindowsAreMadeTogetherAndAsLargeAsTheLargest) {
  for (const int size : {1, 2, 3}) {
    fake().reset();
    run_nccl_ranks(
        size,
        [](std::shared_ptr<Group> group, HostDevice&) {
          const at::Tensor uneven = group->allocate(10000 * group->rank(), at::kFloat);
          EXPECT_EQ(uneven.numel(), 10000 * group->rank());
          use(group, 9);
          const int64_t before = count_calls("ncclMemAlloc");
          if (group->rank() == 0) {  // from now on alone, and kDefault
            EXPECT_EQ(group->allocate(3, at::kLong).numel(), 3);
          }
          EXPECT_EQ(count_calls("ncclMemAlloc"), before);
          wait_on_host(*group->broadcast(uneven.narrow(0, 0, 0), 0, "nothing"));
        },
        with({.memory = Memory::kWindows}));
    for (const char* function : {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce"}) {
      const auto calls = calls_of(function);
      EXPECT_EQ(static_cast<int>(calls.size()), size) << function;
      for (const FakeCall& call : calls) {
        EXPECT_TRUE(call.is_in_window) << function;
        EXPECT_FALSE(call.is_run_by_copy_engine) << function;
      }
    }
  }
}

TEST_F(NcclMemory, CopyEnginesGatherInWindowsAndReduceNothing) {
  run_nccl_ranks(
      3,
      [](std::shared_ptr<Group> group, HostDevice&) {
        use(group, 4);
        const auto part = group->subgroup({0, 2}, "ends");
        if (part != nullptr) use(std::dynamic_pointer_cast<Group>(part), 6);
        const at::Tensor plain = at::zeros({3});
        wait_on_host(*group->all_gather(plain, at::ones({1}), "elsewhere"));
      },
      with({.memory = Memory::kWindows, .copy_engine = true}));
  int by_engines = 0;
  for (const FakeCall& call : calls_of("ncclAllGather")) {
    EXPECT_EQ(call.is_run_by_copy_engine, call.is_in_window);
    by_engines += call.is_run_by_copy_engine ? 1 : 0;
  }
  EXPECT_EQ(by_engines, 5);
  for (const FakeCall& call : calls_of("ncclAllReduce")) EXPECT_FALSE(call.is_run_by_copy_engine);
}

TEST_F(NcclMemory, ARankThatAllocatesAloneIsATimeOutThatNamesTheOthers) {
  const auto errors = run_nccl_ranks_expecting_errors(
      3,
      [](std::shared_ptr<Group> group, HostDevice&) {
        if (group->rank() != 1) group->allocate(8, at::kFloat);
        group->all_gather_on_host(at::zeros({3}), at::zeros({1}), "vote");
      },
      with({.memory = Memory::kWindows}, testing::impatient()));
  EXPECT_THAT(errors, Each(HasSubstr(testing::waited_impatiently())));
  EXPECT_THAT(errors[0] + errors[1], AllOf(HasSubstr("allocate ''"), HasSubstr("all_gather")));
}

TEST_F(NcclMemory, NoSpaceForAWindowOnOneRankEndsAllRanks) {
  const auto errors = run_nccl_ranks_expecting_errors(
      3,
      [](std::shared_ptr<Group> group, HostDevice&) {
        group->barrier("before");
        if (group->rank() == 0) fake().fail_next("ncclMemAlloc", 1);
        group->barrier("armed");
        group->allocate(8, at::kFloat);
        wait_for_failure(*group);
      },
      with({.memory = Memory::kWindows}));
  EXPECT_THAT(errors, Each(HasSubstr("[comm] allocate: got no memory for 4096 bytes")));
}

TEST_F(NcclMemory, NoSpaceForABufferIsAnErrorAndTheGroupGoesOn) {
  run_nccl_ranks(
      1,
      [](std::shared_ptr<Group> group, HostDevice&) {
        fake().fail_next("ncclMemAlloc", 1);
        try {
          group->allocate(8, at::kFloat);
          ADD_FAILURE();
        } catch (const c10::Error& error) {
          EXPECT_THAT(error_text(error),
                      HasSubstr("[comm] allocate: got no memory for 4096 bytes"));
        }
        use(group, 3);
      },
      with({.memory = Memory::kRegistered}));
}

TEST_F(NcclMemory, GpusWithoutWindowsAreNamed) {
  fake().refuse_windows();
  const auto errors = run_nccl_ranks_expecting_errors(
      2, [](std::shared_ptr<Group> group, HostDevice&) { group->allocate(8, at::kFloat); },
      with({.memory = Memory::kWindows}));
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("[comm] allocate: got no window from NCCL"),
                                 HasSubstr("memory = kRegistered"))));
  run_nccl_ranks(
      1, [](std::shared_ptr<Group> group, HostDevice&) { use(group, 3); },
      with({.memory = Memory::kWindows}));
}

TEST_F(NcclMemory, LivesAsLongAsItsTensors) {
  for (const Memory memory : {Memory::kRegistered, Memory::kWindows}) {
    std::mutex mutex;
    std::vector<at::Tensor> kept;
    run_nccl_ranks(
        2,
        [&](std::shared_ptr<Group> group, HostDevice&) {
          const at::Tensor tensor = group->allocate(6, at::kFloat);
          wait_on_host(*group->all_reduce(tensor.fill_(1), ReduceOp::kSum));
          const std::lock_guard<std::mutex> lock(mutex);
          kept.push_back(tensor.view({2, 3}));
        },
        with({.memory = memory}));
    EXPECT_EQ(fake().live_memory(), 2);  // and no communicator
    for (const at::Tensor& tensor : kept) EXPECT_EQ(tensor.sum().item<float>(), 12.0f);
    kept.clear();
    await_no_memory();
  }
}

TEST_F(NcclMemory, IsFreedWhenTheStreamHasComeSoFar) {
  run_nccl_ranks(
      1,
      [](std::shared_ptr<Group> group, HostDevice& device) {
        std::promise<void> open;
        HostDevice::run(*device.current_stream(),
                        [opened = open.get_future().share()] { opened.wait(); });
        at::Tensor tensor = group->allocate(6, at::kFloat);
        float* data = tensor.mutable_data_ptr<float>();
        HostDevice::run(*device.current_stream(), [data] { data[5] = 7.0f; });
        tensor.reset();
        EXPECT_EQ(fake().live_memory(), 1);
        open.set_value();
      },
      with({.memory = Memory::kRegistered}));
  await_no_memory();
}

TEST_F(NcclMemory, AFailureTakesItDownWithTheCommunicators) {
  for (const Memory memory : {Memory::kRegistered, Memory::kWindows}) {
    const auto errors = run_nccl_ranks_expecting_errors(
        3,
        [](std::shared_ptr<Group> group, HostDevice&) {
          const at::Tensor tensor = group->allocate(6, at::kFloat);
          if (group->rank() == 2) throw std::runtime_error("no more data");
          wait_on_host(*group->all_reduce(tensor, ReduceOp::kSum));
        },
        with({.memory = memory}));
    EXPECT_THAT(errors[0], HasSubstr("rank 2 left while an exception unwound"));
    await_no_memory();
  }
}

TEST_F(NcclMemory, RanksMustAskForTheSame) {
  NcclRankOptions options;
  options.make = [](nccl::WorldOptions world) {
    world.nccl.memory = world.rank == 1 ? Memory::kWindows : Memory::kRegistered;
    return nccl::make_world(std::move(world));
  };
  EXPECT_THAT(
      run_nccl_ranks_expecting_errors(
          3, [](std::shared_ptr<Group>, HostDevice&) {}, options),
      Each(HasSubstr("rank 1 called init_process_group 'memory kWindows' where rank 0 called "
                     "init_process_group 'memory kRegistered'")));
}

TEST_F(FakeNcclMemory, ControlMemoryFreedWhileItIsRegisteredIsAComplaint) {
  run_nccl_ranks(
      1,
      [](std::shared_ptr<Group> group, HostDevice&) {
        const auto api = testing::fake_api();
        const at::Tensor tensor = group->allocate(6, at::kFloat);
        api->mem_free(tensor.data_ptr());
      },
      with({.memory = Memory::kRegistered}));
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (fake().complaints().size() < 2 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_THAT(fake().complaints(),
              ::testing::Contains(HasSubstr("freed memory that is registered with 'world: ")));
}

}  // namespace
}  // namespace tessera::internal
