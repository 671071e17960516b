// Groups of CUDA tensors over a fake of LibTorch's CUDA half: a world of one, ranks that share GPUs
// through shared memory, and a world of NCCL.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tessera/core/comm/groups/loopback_group.h"
#include "tessera/core/comm/groups/staged_group.h"
#include "tessera/core/device/cuda_device.h"
#include "tessera/core/device/cuda_library.h"
#include "tessera/core/device/graph.h"
#include "tessera/core/process/error_text.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/core/comm/groups/group_suite.h"
#include "tessera/tests/support/fake_cuda/fake_cuda.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

class GroupsOnCuda : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto library = load_cuda_library([](const char* name) {
      return std::string(name) == "TESSERA_CUDA_LIBRARIES" ? std::optional<std::string>(FAKE_CUDA)
                                                           : std::nullopt;
    });
    ASSERT_TRUE(library.ok()) << library.status();
    ::setenv("TESSERA_CUDA_LIBRARIES", FAKE_CUDA, /*overwrite=*/1);
    ::setenv("TESSERA_CUDA_GRAPH_MODULE", FAKE_CUDA_GRAPH, /*overwrite=*/1);
    ::setenv("TESSERA_NCCL", FAKE_NCCL, /*overwrite=*/1);
  }

  /// Tests that follow start processes.
  static void TearDownTestSuite() {
    for (const char* name :
         {"TESSERA_CUDA_LIBRARIES", "TESSERA_CUDA_GRAPH_MODULE", "TESSERA_NCCL"}) {
      ::unsetenv(name);
    }
  }

  static testing::FakeCuda& fake() {
    void* library = ::dlopen(FAKE_CUDA "/libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    return *reinterpret_cast<testing::FakeCuda* (*)()>(::dlsym(library, "tessera_fake_cuda"))();
  }

  static std::shared_ptr<CudaDevice> device_of(int rank) {
    auto device = std::make_shared<CudaDevice>(static_cast<c10::DeviceIndex>(rank % 2));
    device->make_current();
    return device;
  }
};

at::Tensor values_of(int rank, int64_t numel, at::ScalarType dtype) {
  return (at::arange(numel, at::kDouble) * (0.37 + rank) + rank).to(dtype);
}

at::Tensor on_cpu(const at::Tensor& tensor) { return tensor.to(at::kCPU); }

TEST_F(GroupsOnCuda, AWorldOfOneNeverWaitsForItsGpu) {
  const auto device = device_of(1);
  LoopbackGroup group(device);
  EXPECT_EQ(group.device(), at::Device(at::kCUDA, 1));
  const at::Tensor input = values_of(0, 6, at::kFloat).to(device->torch_device());
  const at::Tensor gathered = group.allocate(6, at::kFloat);
  EXPECT_EQ(gathered.device(), device->torch_device());
  const at::Tensor scattered = at::empty({2, 3}, gathered.options());
  const int64_t before = fake().host_syncs();
  group.all_gather(gathered, input.view({3, 2}), "unit")->wait();
  group.reduce_scatter(scattered, gathered, ReduceOp::kAvg, "bucket")->wait();
  group.all_reduce(gathered, ReduceOp::kSum, "bucket")->wait();
  group.broadcast(gathered, 0, "parameters")->wait();
  group.barrier("end");
  EXPECT_EQ(fake().host_syncs(), before);
  EXPECT_TRUE(at::equal(on_cpu(scattered).view({6}), values_of(0, 6, at::kFloat)));
  EXPECT_THAT(message_of([&] { group.all_reduce(at::zeros({2}), ReduceOp::kSum); }),
              HasSubstr("[comm] all_reduce: got tensor on cpu, expected it on cuda:1"));
  EXPECT_THAT(message_of([&] { group.make_window(gathered, "shards"); }),
              HasSubstr("on cuda:1, expected one whose ranks read each other's memory"));
  const at::Tensor told = at::zeros({2}, at::kLong);
  group.all_gather_on_host(told, at::ones({2}, at::kLong), "vote");
  EXPECT_EQ(told.sum().item<int64_t>(), 2);
}

TEST_F(GroupsOnCuda, RanksShareGpusThroughSharedMemoryToTheBit) {
  for (const int size : {1, 2, 3}) {
    testing::run_ranks(
        size,
        [&](std::shared_ptr<ProcessGroup> shm) {
          const int rank = shm->rank();
          const auto device = device_of(rank);
          StagedGroup staged(shm, device);
          EXPECT_EQ(staged.device(), device->torch_device());
          for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble,
                                             at::kLong, at::kInt, at::kByte}) {
            const int64_t numel = 257;
            const at::Tensor own = values_of(rank, size * numel, dtype);
            const at::Tensor expected = own.clone();
            shm->all_reduce(expected, ReduceOp::kSum, "r")->wait();
            const at::Tensor sum = own.to(device->torch_device());
            staged.all_reduce(sum, ReduceOp::kSum, "r")->wait();
            EXPECT_TRUE(at::equal(on_cpu(sum), expected));

            const int slice = (rank + 1) % size;
            const at::Tensor input = own.to(device->torch_device());
            const at::Tensor part = staged.allocate(numel, dtype);
            staged.reduce_scatter(part, input, ReduceOp::kSum, "s", slice)->wait();
            EXPECT_TRUE(at::equal(on_cpu(part), expected.narrow(0, slice * numel, numel)));

            const at::Tensor all = staged.allocate(size * numel, dtype);
            const at::Tensor slot = all.narrow(0, rank * numel, numel);
            slot.copy_(values_of(rank, numel, dtype));
            staged.all_gather(all, slot, "g")->wait();
            staged.broadcast(input, size - 1, "b")->wait();
            for (int one = 0; one < size; ++one) {
              EXPECT_TRUE(at::equal(on_cpu(all.narrow(0, one * numel, numel)),
                                    values_of(one, numel, dtype)));
            }
            EXPECT_TRUE(at::equal(on_cpu(input), values_of(size - 1, size * numel, dtype)));
          }
          // Only the stream that waits may use the result.
          const c10::Stream other =
              c10::impl::getDeviceGuardImpl(at::kCUDA)->getStreamFromGlobalPool(
                  device->torch_device(), false);
          const at::Tensor ones =
              at::ones({64}, at::TensorOptions(at::kFloat).device(device->torch_device()));
          const auto work = staged.all_reduce(ones, ReduceOp::kSum, "streams");
          {
            const c10::StreamGuard guard(other);
            work->wait();
            EXPECT_EQ(on_cpu(ones).sum().item<float>(), 64.0f * size);
          }
          EXPECT_THAT(message_of([&] { staged.broadcast(at::zeros({2}), 0); }),
                      HasSubstr("[comm] broadcast: got tensor on cpu, expected it on cuda:"));
          staged.barrier("end");
        },
        {.backend = "shm"});
  }
}

/// The whole surface: ranks that share GPUs through shared memory, and NCCL's.
TEST_F(GroupsOnCuda, HaveTheWholeSurface) {
  testing::GroupBackend staged{.name = "staged", .world_sizes = {2, 3}, .run = nullptr};
  staged.largest = 20001;  // more than a send buffers
  staged.run = [](int size, const testing::RankBody& body) {
    testing::run_ranks(size, [&](std::shared_ptr<ProcessGroup> shm) {
      const auto device = device_of(shm->rank());
      body(std::make_shared<StagedGroup>(shm, device));
    });
  };
  test_moves(staged);
  test_uneven_all_to_all(staged);
  test_coalesced_and_bytes(staged);
  test_subgroups(staged);
  test_messages(staged);
  test_messages_beside_collectives(staged);

  testing::GroupBackend nccl{.name = "nccl", .world_sizes = {1, 2, 3}, .run = nullptr};
  nccl.has_bitwise = nccl.reduces_int16 = nccl.has_any_source = false;
  nccl.compares_counts = nccl.matches_by_tag = false;
  nccl.largest = 1001;
  nccl.run = [](int size, const testing::RankBody& body) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          body(init_process_group({.device = at::Device(at::kCUDA, static_cast<int8_t>(rank)),
                                   .rank = rank,
                                   .world_size = size,
                                   .store = store,
                                   .timeout = std::chrono::seconds(20),
                                   .backend = "nccl"}));
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
  };
  test_moves(nccl);
  test_coalesced_and_bytes(nccl);
  test_messages(nccl);
}

TEST_F(GroupsOnCuda, WhatIsCapturedIntoAGraphIsRefusedByName) {
  const at::Device device(at::kCUDA, 0);
  const auto nccl =
      init_process_group({.device = device, .rank = 0, .world_size = 1, .backend = "nccl"});
  const auto shm =
      init_process_group({.device = device, .rank = 0, .world_size = 1, .backend = "shm"});
  const auto loopback = init_process_group({.device = device, .rank = 0, .world_size = 1});
  EXPECT_EQ(nccl->backend(), "nccl");
  EXPECT_EQ(loopback->backend(), "loopback");
  const at::Tensor from = at::ones({4}, at::TensorOptions(at::kFloat).device(device));
  const at::Tensor to = at::zeros({4}, from.options());
  {
    const auto graph = make_graph(device);
    graph->begin();
    for (const auto& group : {nccl, shm}) {
      EXPECT_THAT(message_of([&] { group->all_reduce(from, ReduceOp::kSum, "bucket 0"); }),
                  HasSubstr("[comm] all_reduce 'bucket 0': is being captured into a CUDA graph"));
    }
    loopback->all_gather(to, from, "unit")->wait();
    graph->end();
    EXPECT_EQ(on_cpu(to).sum().item<float>(), 0.0f);
    graph->replay();
    EXPECT_EQ(on_cpu(to).sum().item<float>(), 4.0f);
  }
  for (const auto& group : {nccl, shm}) {
    group->all_reduce(from, ReduceOp::kSum, "bucket 0")->wait();
    EXPECT_EQ(on_cpu(from).sum().item<float>(), 4.0f);
  }
}

TEST_F(GroupsOnCuda, MemoryOfNcclIsADevices) {
  const at::Device device(at::kCUDA, 1);
  for (const auto memory : {NcclOptions::Memory::kRegistered, NcclOptions::Memory::kWindows}) {
    const auto group = init_process_group({.device = device,
                                           .rank = 0,
                                           .world_size = 1,
                                           .backend = "nccl",
                                           .nccl = {.memory = memory}});
    const at::Tensor tensor = group->allocate(5, at::kFloat);
    EXPECT_EQ(tensor.device(), device);
    tensor.fill_(3.0);
    group->all_reduce(tensor, ReduceOp::kSum, "bucket")->wait();
    const at::Tensor words = at::full({2}, int64_t{1} << 40, tensor.options().dtype(at::kLong));
    group->all_reduce(words, ReduceOp::kSum, "norm")->wait();
    EXPECT_EQ(on_cpu(tensor).sum().item<float>(), 15.0f);
    EXPECT_EQ(on_cpu(words).sum().item<int64_t>(), int64_t{1} << 41);
  }
}

}  // namespace
}  // namespace tessera::internal
