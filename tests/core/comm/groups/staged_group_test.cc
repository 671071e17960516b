// Ranks whose tensors are on devices and that stage through host memory, with streams that are
// threads.
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/groups/staged_group.h"
#include "tessera/core/process/error_text.h"
#include "tessera/errors.h"
#include "tessera/tests/core/comm/groups/fill_later.h"
#include "tessera/tests/core/comm/groups/rank_tensors.h"
#include "tessera/tests/support/gate.h"
#include "tessera/tests/support/host_device.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::fill_later;
using testing::Gate;
using ::testing::HasSubstr;
using testing::have_same_bits;
using testing::HostDevice;
using testing::message_of;
using testing::run_ranks;
using testing::run_ranks_expecting_errors;

constexpr at::ScalarType kStagedDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                            at::kLong,  at::kInt,    at::kByte};

std::shared_ptr<HostDevice> late_device(int rank) {
  return std::make_shared<HostDevice>(HostDevice::Options{
      .longest_delay = std::chrono::microseconds(300), .seed = static_cast<uint64_t>(rank + 1)});
}

at::Tensor values_of(int rank, int64_t numel, at::ScalarType dtype) {
  return (at::arange(numel, at::kDouble) * (0.37 + rank) + rank).to(dtype);
}

TEST(Staged, GivesTheBitsOfSharedMemory) {
  for (const int size : {1, 2, 3}) {
    run_ranks(size,
              [&](std::shared_ptr<ProcessGroup> shm) {
                const auto device = late_device(shm->rank());
                StagedGroup staged(shm, device);
                ASSERT_EQ(staged.size(), size);
                for (const at::ScalarType dtype : kStagedDtypes) {
                  for (const int64_t numel : {0, 1, 7, 1000}) {
                    const at::Tensor own = values_of(shm->rank(), size * numel, dtype);
                    const auto later = [&](int64_t begin, int64_t count) {
                      const at::Tensor tensor = device->allocate(count, dtype);
                      fill_later(*device, tensor, own.narrow(0, begin, count));
                      return tensor;
                    };
                    std::vector<std::pair<at::Tensor, at::Tensor>> results;  // got, expected
                    for (const ReduceOp op :
                         {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}) {
                      if (op == ReduceOp::kAvg && !at::isFloatingType(dtype)) continue;
                      const at::Tensor expected = own.clone();
                      shm->all_reduce(expected, op, "r")->wait();
                      const at::Tensor sum = later(0, size * numel);
                      staged.all_reduce(sum, op, "r")->wait();
                      results.emplace_back(sum, expected);
                      for (const int shift : {0, 1}) {
                        const int slice = (shm->rank() + shift) % size;
                        const at::Tensor part = expected.narrow(0, slice * numel, numel).clone();
                        const at::Tensor input = later(0, size * numel);
                        const at::Tensor apart = device->allocate(numel, dtype);
                        staged.reduce_scatter(apart, input, op, "s", slice)->wait();
                        results.emplace_back(apart, part);
                        const at::Tensor within = input.narrow(0, slice * numel, numel);
                        staged.reduce_scatter(within, input, op, "s", slice)->wait();
                        at::Tensor whole = own.clone();  // the other slices do not change
                        whole.narrow(0, slice * numel, numel).copy_(part);
                        results.emplace_back(input, whole);
                      }
                    }
                    const at::Tensor expected = at::empty({size * numel}, dtype);
                    const at::Tensor share = own.narrow(0, 0, numel);
                    shm->all_gather(expected, share, "g")->wait();
                    const at::Tensor all = device->allocate(size * numel, dtype);
                    staged.all_gather(all, later(0, numel), "g")->wait();
                    results.emplace_back(all, expected);
                    const at::Tensor in_place = device->allocate(size * numel, dtype);
                    const at::Tensor slot = in_place.narrow(0, shm->rank() * numel, numel);
                    fill_later(*device, slot, share);
                    staged.all_gather(in_place, slot, "g")->wait();
                    results.emplace_back(in_place, expected);
                    for (int root = 0; root < size; ++root) {
                      const at::Tensor sent = later(0, numel);
                      staged.broadcast(sent, root, "b")->wait();
                      results.emplace_back(
                          sent, values_of(root, size * numel, dtype).narrow(0, 0, numel));
                      const at::Tensor wanted = share.clone();
                      shm->reduce(wanted, ReduceOp::kSum, root, "p")->wait();
                      const at::Tensor part = later(0, numel);
                      staged.reduce(part, ReduceOp::kSum, root, "p")->wait();
                      results.emplace_back(part, wanted);
                    }
                    device->synchronize();
                    for (const auto& [got, want] : results)
                      EXPECT_TRUE(have_same_bits(got, want.contiguous()));
                  }
                }
                // Any shape, and sums of integers, as the norm needs.
                const at::Tensor words = at::full({5, 7}, int64_t{1} << 40, at::kLong);
                staged.all_reduce(words, ReduceOp::kSum, "words")->wait();
                device->synchronize();
                EXPECT_EQ(words.sum().item<int64_t>(), 35 * size * (int64_t{1} << 40));
              },
              {.backend = "shm"});
  }
}

/// A device whose new host memory holds NaN, and whose events the host may ignore.
class StagingDevice final : public Device {
 public:
  enum class Host : uint8_t { kWaits, kGoesOn };

  StagingDevice(std::shared_ptr<HostDevice> device, Host host)
      : device_(std::move(device)), host_(host) {}

  at::Device torch_device() const override { return device_->torch_device(); }
  std::shared_ptr<Stream> current_stream() override {
    return std::make_shared<Unwrapping>(device_->current_stream());
  }
  std::shared_ptr<Stream> make_stream(Priority priority) override {
    return device_->make_stream(priority);
  }
  std::shared_ptr<Event> make_event() override {
    return std::make_shared<Mark>(device_->make_event(), host_);
  }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return device_->allocate(numel, dtype);
  }
  at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) override {
    if (fails) throw std::runtime_error("out of pinned memory");
    const at::Tensor tensor = device_->allocate_on_host(numel, dtype);
    std::memset(tensor.mutable_data_ptr(), 0xFF, tensor.nbytes());
    return tensor;
  }

  bool fails = false;

 private:
  struct Mark final : Event {
    Mark(std::shared_ptr<Event> inner, Host host) : inner(std::move(inner)), host(host) {}
    bool is_done() override { return inner->is_done(); }
    void synchronize() override {
      if (host == Host::kWaits) inner->synchronize();
    }
    const std::shared_ptr<Event> inner;
    const Host host;
  };
  struct Unwrapping final : Stream {
    explicit Unwrapping(std::shared_ptr<Stream> inner) : inner(std::move(inner)) {}
    void record(Event& event) override { inner->record(*static_cast<Mark&>(event).inner); }
    void wait(Event& event) override { inner->wait(*static_cast<Mark&>(event).inner); }
    void copy(void* to, const void* from, int64_t bytes) override { inner->copy(to, from, bytes); }
    void copy(const at::Tensor& to, const at::Tensor& from) override { inner->copy(to, from); }
    void* handle() override { return inner->handle(); }
    const std::shared_ptr<Stream> inner;
  };

  const std::shared_ptr<HostDevice> device_;
  const Host host_;
};

/// Reduces ones that rank 0's stream writes late; the correct result is 3.
float reduce_late_input(StagingDevice::Host host) {
  float result = 0;
  run_ranks(3,
            [&](std::shared_ptr<ProcessGroup> shm) {
              const auto streams = std::make_shared<HostDevice>();
              StagedGroup group(shm, std::make_shared<StagingDevice>(streams, host));
              const at::Tensor tensor = at::zeros({64});
              Gate gate(streams->current_stream()->handle());
              fill_later(*streams, tensor, at::ones({64}));
              std::thread opens;
              if (host == StagingDevice::Host::kWaits) {
                opens = std::thread([&] { gate.open(); });
              }
              group.all_reduce(tensor, ReduceOp::kSum, "late")->wait();
              if (opens.joinable()) opens.join();
              gate.open();
              streams->synchronize();
              if (shm->rank() == 0) result = tensor[5].item<float>();
            },
            {.backend = "shm"});
  return result;
}

TEST(Staged, WaitsForWhatTheCurrentStreamWrites) {
  EXPECT_EQ(reduce_late_input(StagingDevice::Host::kWaits), 3.0f);
}

TEST(Staged, ControlAHostThatDoesNotWaitIsCaught) {
  EXPECT_NE(reduce_late_input(StagingDevice::Host::kGoesOn), 3.0f);
}

TEST(Staged, WhatFailsOnOneRankIsEveryonesError) {
  const auto errors = run_ranks_expecting_errors(
      3,
      [](std::shared_ptr<ProcessGroup> shm) {
        const auto device = std::make_shared<StagingDevice>(std::make_shared<HostDevice>(),
                                                            StagingDevice::Host::kWaits);
        StagedGroup group(shm, device);
        group.all_reduce(at::ones({3}), ReduceOp::kSum, "fine")->wait();
        device->fails = shm->rank() == 1;
        group.all_reduce(at::ones({3}), ReduceOp::kSum, "bucket 1")->wait();
      },
      {.backend = "shm"});
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("[comm] all_reduce"), HasSubstr("'bucket 1'"),
                                 HasSubstr("rank 1 failed: out of pinned memory"))));
}

TEST(Staged, CallsThatDifferAndRanksThatLeaveAreNamedAsOnSharedMemory) {
  const auto run = [](const std::function<void(StagedGroup&)>& body) {
    return run_ranks_expecting_errors(3,
                                      [&](std::shared_ptr<ProcessGroup> shm) {
                                        StagedGroup group(std::move(shm), late_device(0));
                                        body(group);
                                      },
                                      {.backend = "shm"});
  };
  EXPECT_THAT(run([](StagedGroup& group) {
                group
                    .all_reduce(at::zeros({group.rank() == 2 ? 4 : 3}), ReduceOp::kSum, "bucket 0")
                    ->wait();
              }),
              Each(AllOf(HasSubstr("[comm] all_reduce #0 'bucket 0'"), HasSubstr("float32[4]"),
                         HasSubstr("float32[3]"))));
  EXPECT_THAT(run([](StagedGroup& group) {
                group
                    .reduce_scatter(at::zeros({2}), at::zeros({6}), ReduceOp::kSum, "bucket 0",
                                    group.rank() == 0 ? 1 : group.rank())
                    ->wait();
              }),
              Each(HasSubstr("both asked for slice 1")));
  const auto errors = run([](StagedGroup& group) {
    if (group.rank() == 1) throw std::runtime_error("no more data");
    group.all_gather(at::zeros({3}), at::zeros({1}), "unit")->wait();
  });
  for (const int rank : {0, 2}) {
    EXPECT_THAT(errors[rank], AllOf(HasSubstr("[comm] all_gather #0 'unit'"),
                                    HasSubstr("rank 1 left while an exception unwound")));
  }
}

TEST(Staged, SubgroupsAndHostGathersGoThrough) {
  run_ranks(3,
            [](std::shared_ptr<ProcessGroup> shm) {
              const auto device = late_device(shm->rank());
              StagedGroup group(shm, device);
              const auto ends = group.subgroup({0, 2}, "ends");
              ASSERT_EQ(ends == nullptr, shm->rank() == 1);
              if (ends != nullptr) {
                EXPECT_EQ(ends->name(), "world/ends");
                EXPECT_FALSE(ends->can().one_sided_reads);
                const at::Tensor sum = at::ones({4});
                ends->all_reduce(sum, ReduceOp::kSum, "two")->wait();
                device->synchronize();
                EXPECT_EQ(sum.sum().item<float>(), 8.0f);
              }
              const at::Tensor all = at::zeros({3}, at::kLong);
              const at::Tensor own = at::full({1}, shm->rank() + 1, at::kLong);
              group.all_gather_on_host(all, own, "vote");
              EXPECT_EQ(all.sum().item<int64_t>(), 6);
              group.start_gather_on_host(all.zero_(), own, "vote")->wait();
              EXPECT_EQ(all.sum().item<int64_t>(), 6);
              group.barrier("end");
              EXPECT_FALSE(group.can().in_background);
              EXPECT_EQ(group.make_shared_buffer(64, "parameters"), nullptr);
              EXPECT_THAT(
                  message_of([&] { group.make_window(at::zeros({3}), "shards"); }),
                  HasSubstr("[comm] make_window 'shards': got a group of backend 'shm' on cpu"));
              EXPECT_THAT(message_of([&] {
                            group.all_reduce(at::zeros({3}).to(at::kComplexFloat), ReduceOp::kSum);
                          }),
                          HasSubstr("[comm] all_reduce: got tensor of ComplexFloat"));
              const at::Tensor elsewhere = at::zeros({3}, at::TensorOptions().device(at::kMeta));
              EXPECT_THAT(message_of([&] { group.broadcast(elsewhere, 0); }),
                          HasSubstr("[comm] broadcast: got tensor on meta, expected it on cpu"));
            },
            {.backend = "shm"});
}

}  // namespace
}  // namespace tessera::internal
