// init_process_group() with a CUDA device: success over fakes of LibTorch's CUDA half and of NCCL,
// and failures, which must be the same error on all ranks.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tessera/core/process/error_text.h"
#include "tessera/errors.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/support/rank_processes.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RankProcessBody;
using testing::RankProcessOptions;
using testing::RankResult;

const RankProcessBody kInit("init_on_cuda", [] {
  try {
    const char* timeout = std::getenv("TEST_TIMEOUT_MS");
    init_process_group(
        {.device = at::kCUDA,
         .timeout = std::chrono::milliseconds(timeout != nullptr ? std::atoi(timeout) : 20000)});
    std::printf("made\n");
  } catch (const std::exception& error) {
    std::printf("%s\n", error_text(error).c_str());
  }
});

const RankProcessBody kMixed("init_on_mixed_devices", [] {
  const bool is_first = std::string(std::getenv("RANK")) == "0";
  init_process_group(
      {.device = is_first ? at::kCPU : at::kCUDA, .timeout = std::chrono::seconds(20)});
});

/// Ranks are threads, as the fake NCCL requires, each on its own GPU.
const RankProcessBody kThreads("init_on_cuda_by_threads", [] {
  for (const int size : {1, 2, 3}) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    for (int again = 0; again < 2; ++again) {  // a second world in the same store
      std::vector<std::thread> ranks;
      for (int rank = 0; rank < size; ++rank) {
        ranks.emplace_back([&, rank] {
          const auto world = init_process_group(
              {.device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(rank)),
               .rank = rank,
               .world_size = size,
               .store = store,
               .timeout = std::chrono::seconds(20)});
          EXPECT_EQ(world->backend(), size == 1 ? "loopback" : "nccl");
          EXPECT_EQ(world->device(), at::Device(at::kCUDA, rank));
          EXPECT_FALSE(world->can().one_sided_reads);
          EXPECT_EQ(world->rank(), rank);
          EXPECT_EQ(world->size(), size);
          EXPECT_EQ(world->allocate(3, at::kFloat).device(), at::Device(at::kCUDA, rank));
          world->barrier("all are there");
        });
      }
      for (std::thread& rank : ranks) rank.join();
    }
  }
  const auto alone = init_process_group({.device = at::kCUDA, .backend = "nccl"});
  EXPECT_EQ(alone->backend(), "nccl");
  alone->barrier("alone");
  std::printf("done\n");
});

/// Ranks of one host that share GPUs.
const RankProcessBody kShared("init_on_shared_gpus", [] {
  try {
    const auto world = init_process_group(
        {.device = at::kCUDA, .timeout = std::chrono::seconds(20), .backend = "shm"});
    world->barrier("all are there");
    std::printf("%s on %s", std::string(world->backend()).c_str(), world->device().str().c_str());
  } catch (const std::exception& error) {
    std::printf("%s", error_text(error).c_str());
  }
});

const RankProcessBody kShare("init_on_one_gpu", [] {
  const auto world = init_process_group({.device = at::Device(at::kCUDA, 1), .backend = "shm"});
  std::printf("%s", world->device().str().c_str());
});

const RankProcessBody kMortal("reduce_with_a_rank_that_dies", [] {
  const auto world = init_process_group(
      {.device = at::kCUDA, .timeout = std::chrono::seconds(20), .backend = "shm"});
  const at::Tensor tensor = at::ones({1000}, at::TensorOptions(at::kFloat).device(world->device()));
  world->all_reduce(tensor, ReduceOp::kSum, "bucket 0")->wait();
  std::printf("sum %d\n", static_cast<int>(tensor[7].item<float>()));
  std::fflush(stdout);
  if (world->rank() == 1) ::pause();
  try {
    world->all_reduce(tensor, ReduceOp::kSum, "bucket 1")->wait();
  } catch (const CommError& error) {
    std::printf("%s", error.what());
  }
});

std::vector<RankResult> run(int size, const std::string& body, RankProcessOptions options) {
  options.environment.insert({"TESSERA_CUDA_LIBRARIES", FAKE_CUDA});
  options.environment.insert({"TESSERA_NCCL", FAKE_NCCL});
  return testing::run_rank_processes(size, body, options);
}

/// Returns the output of the ranks, which must be the same.
std::string same_output(const std::vector<RankResult>& results) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].exit_code, 0) << results[rank].output;
    EXPECT_FALSE(results[rank].timed_out);
    EXPECT_EQ(results[rank].output, results[0].output) << "rank " << rank;
  }
  return results[0].output;
}

TEST(CudaWorld, EveryRankGetsItsGpu) {
  const auto results = run(1, "init_on_cuda_by_threads", {});
  EXPECT_EQ(results[0].output, "done\n");
  EXPECT_EQ(results[0].exit_code, 0);
}

TEST(CudaWorld, RanksMayShareGpusOverSharedMemory) {
  for (const int size : {1, 2, 3}) {
    RankProcessOptions options;
    options.environment["FAKE_CUDA_DEVICES"] = "2";
    options.environment["TESSERA_NCCL"] = "/no/such/libnccl.so.2";  // must not be looked for
    const auto results = run(size, "init_on_shared_gpus", options);
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(results[rank].output, "shm on cuda:" + std::to_string(rank % 2));
    }
    EXPECT_EQ(same_output(run(size, "init_on_one_gpu", options)), "cuda:1");
  }
}

TEST(CudaWorld, ARankThatSharesAGpuAndDiesIsNamedAtOnce) {
  RankProcessOptions options;
  options.environment = {{"TESSERA_CUDA_LIBRARIES", FAKE_CUDA}, {"FAKE_CUDA_DEVICES", "1"}};
  testing::RankProcesses ranks(3, "reduce_with_a_rank_that_dies", options);
  for (const int rank : {0, 1, 2}) EXPECT_TRUE(ranks.wait_for_output(rank, "sum 3"));
  ranks.kill(1);
  const auto results = ranks.wait();
  for (const int rank : {0, 2}) {
    EXPECT_THAT(results[rank].output, AllOf(HasSubstr("[comm] all_reduce #"),
                                            HasSubstr("'bucket 1'"), HasSubstr("rank 1")));
    EXPECT_EQ(results[rank].exit_code, 0);
  }
}

TEST(CudaWorld, WhatARankThatSharesLacksAllRanksSay) {
  RankProcessOptions options;
  options.environment_of_rank[1]["TESSERA_CUDA_LIBRARIES"] = "/no/such/folder";
  EXPECT_THAT(same_output(run(3, "init_on_shared_gpus", options)),
              AllOf(HasSubstr("[init_process_group] rank 1: [cuda] library: got none"),
                    Not(HasSubstr("rank 0"))));
}

TEST(CudaWorld, AProcessWithoutLauncherIsAWorldOfOne) {
  RankProcessOptions options;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TESSERA_STORE"})
    options.environment[name] = "";
  EXPECT_EQ(same_output(run(1, "init_on_cuda", options)), "made\n");
  options.environment["TESSERA_CUDA_LIBRARIES"] = "/no/such/folder";
  EXPECT_THAT(same_output(run(1, "init_on_cuda", options)),
              ::testing::StartsWith("[cuda] library: "));
}

TEST(CudaWorld, WhatAllRanksLackAllRanksSayOnce) {
  for (const int size : {2, 3}) {
    RankProcessOptions options;
    options.environment["TESSERA_CUDA_LIBRARIES"] = "/no/such/folder";
    const std::string said = same_output(run(size, "init_on_cuda", options));
    EXPECT_THAT(said, AllOf(HasSubstr("[init_process_group] all ranks: [cuda] library: got none"),
                            HasSubstr("'/no/such/folder'"), HasSubstr("bootstrap.sh --cuda"),
                            Not(HasSubstr("rank 1"))));
  }
}

TEST(CudaWorld, WhatOneRankLacksAllRanksSay) {
  RankProcessOptions options;
  options.environment_of_rank[1]["TESSERA_CUDA_LIBRARIES"] = "/no/such/folder";
  options.environment_of_rank[2]["FAKE_CUDA_DEVICES"] = "0";
  EXPECT_THAT(same_output(run(3, "init_on_cuda", options)),
              AllOf(HasSubstr("[init_process_group] rank 1: [cuda] library: got none"),
                    HasSubstr("[init_process_group] rank 2: [cuda] devices: got none"),
                    Not(HasSubstr("rank 0"))));
}

TEST(CudaWorld, MoreRanksThanGpusIsAnError) {
  RankProcessOptions options;
  options.environment["FAKE_CUDA_DEVICES"] = "2";
  EXPECT_THAT(same_output(run(3, "init_on_cuda", options)),
              HasSubstr("[init_process_group] rank 2: [device] LOCAL_RANK: got GPU 2, expected "
                        "one of the 2 that this process sees (CUDA_VISIBLE_DEVICES)"));
}

TEST(CudaWorld, AMissingNcclIsEveryonesError) {
  RankProcessOptions options;
  options.environment["TESSERA_NCCL"] = "/no/such/libnccl.so.2";
  EXPECT_THAT(same_output(run(2, "init_on_cuda", options)),
              HasSubstr("[init_process_group] all ranks: [nccl] library: got none"));
}

TEST(CudaWorld, RanksOnDifferentKindsOfDeviceAreNamed) {
  const auto results = run(3, "init_on_mixed_devices", {});
  for (const RankResult& result : results) {
    EXPECT_THAT(result.output,
                HasSubstr("rank 1 has the device cuda where rank 0 has cpu; give all "
                          "ranks one kind of device"));
  }
}

/// Time by which processes must have started.
constexpr const char* kLimitOfProcesses = "5000";

TEST(CudaWorld, ARankThatDoesNotComeIsNamedAtTheTimeOut) {
  RankProcessOptions options;
  options.environment["WORLD_SIZE"] = options.environment["LOCAL_WORLD_SIZE"] = "3";
  options.environment["TEST_TIMEOUT_MS"] = kLimitOfProcesses;
  for (const RankResult& result : run(2, "init_on_cuda", options)) {
    EXPECT_THAT(result.output, HasSubstr(absl::StrCat("timed out after ", kLimitOfProcesses,
                                                      " ms: rank 2 did not come")));
  }
}

TEST(CudaWorld, ARankWhoseDriverStallsIsNamedAtTheTimeOut) {
  RankProcessOptions options;
  options.environment = {{"TESSERA_CUDA_LIBRARIES", FAKE_CUDA},
                         {"TESSERA_NCCL", FAKE_NCCL},
                         {"TEST_TIMEOUT_MS", kLimitOfProcesses}};
  options.environment_of_rank[1]["FAKE_CUDA_STALLS"] = "1";
  testing::RankProcesses ranks(3, "init_on_cuda", options);
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(ranks.wait_for_output(rank, absl::StrCat("timed out: waited ", kLimitOfProcesses,
                                                         " ms for rank 1, which does not answer")));
  }
  ranks.kill(1);
  ranks.wait();
}

TEST(CudaWorld, OptionsAreChecked) {
  const auto refused = [](ProcessGroupOptions options) -> std::string {
    try {
      init_process_group(std::move(options));
    } catch (const c10::Error& error) {
      return error_text(error);
    }
    return "";
  };
  EXPECT_THAT(refused({.backend = "nccl"}), HasSubstr("got backend 'nccl' with device 'cpu'"));
  EXPECT_THAT(refused({.device = at::kCUDA, .backend = "gloo"}),
              HasSubstr("got backend 'gloo', expected 'auto', 'loopback' (one rank)"));
  EXPECT_THAT(refused({.backend = "shm", .nccl = {.memory = NcclOptions::Memory::kRegistered}}),
              HasSubstr("got memory or copy engines of nccl with backend 'shm' on cpu"));
  EXPECT_THAT(refused({.device = at::kCUDA, .backend = "shm", .nccl = {.copy_engine = true}}),
              HasSubstr("got memory or copy engines of nccl with backend 'shm' on cuda"));
  EXPECT_THAT(refused({.device = at::kCUDA, .nccl = {.copy_engine = true}}),
              HasSubstr("got nccl.copy_engine without windows"));
  EXPECT_THAT(refused({.device = at::kXPU}), HasSubstr("got device 'xpu', expected at::kCPU or"));
  EXPECT_THAT(refused({.device = at::kCUDA, .rank = 0, .world_size = 2}),
              HasSubstr("expected the index of its GPU, too"));
  EXPECT_THAT(refused({.device = at::kCUDA, .lane = ProcessGroupOptions::Lane::kThread}),
              HasSubstr("got a lane with device 'cuda'"));
}

}  // namespace
}  // namespace tessera::internal
