// A world of one whose tensors are on a device, with streams that are threads.
#include <functional>
#include <memory>
#include <string>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/groups/loopback_group.h"
#include "tessera/core/process/error_text.h"
#include "tessera/tests/core/comm/groups/fill_later.h"
#include "tessera/tests/support/gate.h"
#include "tessera/tests/support/host_device.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal {
namespace {

using testing::fill_later;
using testing::Gate;
using ::testing::HasSubstr;
using testing::HostDevice;
using testing::message_of;

TEST(LoopbackOnDevice, CopiesOnTheCurrentStreamAndWaitsForNothing) {
  const auto device = std::make_shared<HostDevice>();
  LoopbackGroup group(device);
  EXPECT_EQ(group.backend(), "loopback");
  EXPECT_EQ(group.device(), device->torch_device());
  Gate gate(device->current_stream()->handle());
  const at::Tensor input = at::zeros({2, 3});
  fill_later(*device, input, at::full({2, 3}, 7.0));
  const at::Tensor gathered = at::zeros({6});
  const at::Tensor scattered = at::zeros({3, 2});
  const auto first = group.all_gather(gathered, input, "unit");
  const auto second = group.reduce_scatter(scattered, input, ReduceOp::kAvg, "bucket");
  const auto reduced = group.all_reduce(input, ReduceOp::kSum, "in place");
  for (const auto& work : {first, second, reduced}) {
    EXPECT_FALSE(work->is_completed());
    work->wait();
  }
  EXPECT_EQ(gathered.sum().item<float>(), 0.0f);
  gate.open();
  device->synchronize();
  EXPECT_EQ(gathered.sum().item<float>(), 42.0f);
  EXPECT_EQ(scattered.sum().item<float>(), 42.0f);
  EXPECT_TRUE(first->is_completed());
}

TEST(LoopbackOnDevice, AStreamThatWaitsIsBehindTheOneOfTheCall) {
  // The current stream differs between the call and wait().
  class Switching final : public Device {
   public:
    at::Device torch_device() const override { return host.torch_device(); }
    std::shared_ptr<Stream> current_stream() override { return current; }
    std::shared_ptr<Stream> make_stream(Priority priority) override {
      return host.make_stream(priority);
    }
    std::shared_ptr<Event> make_event() override { return host.make_event(); }
    at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
      return host.allocate(numel, dtype);
    }
    at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) override {
      return host.allocate(numel, dtype);
    }
    HostDevice host;
    std::shared_ptr<Stream> current = host.current_stream();
  };
  const auto device = std::make_shared<Switching>();
  LoopbackGroup group(device);
  const at::Tensor output = at::zeros({4});
  const at::Tensor seen = at::zeros({4});
  Gate gate(device->current->handle());
  const auto work = group.all_gather(output, at::ones({4}), "unit");
  device->current = device->host.make_stream(Device::Priority::kDefault);
  work->wait();
  device->current->copy(seen, output);
  const auto end = device->host.make_event();
  device->current->record(*end);
  EXPECT_FALSE(end->is_done());
  gate.open();
  end->synchronize();
  EXPECT_EQ(seen.sum().item<float>(), 4.0f);
}

TEST(LoopbackOnDevice, HasNoWindowsAndGathersHostTensorsAtOnce) {
  const auto device = std::make_shared<HostDevice>();
  LoopbackGroup group(device);
  Gate gate(device->current_stream()->handle());
  const at::Tensor all = at::zeros({2}, at::kLong);
  group.all_gather_on_host(all, at::full({2}, 3, at::kLong), "vote");
  EXPECT_EQ(all.sum().item<int64_t>(), 6);
  group.start_gather_on_host(all, at::full({2}, 4, at::kLong), "vote")->wait();
  EXPECT_EQ(all.sum().item<int64_t>(), 8);
  EXPECT_FALSE(group.can().one_sided_reads);
  EXPECT_TRUE(LoopbackGroup().can().one_sided_reads);
  EXPECT_THAT(message_of([&] { group.make_window(at::zeros({3}), "shards"); }),
              HasSubstr("[comm] make_window 'shards': got a group of backend 'loopback' on cpu"));
  EXPECT_EQ(group.make_shared_buffer(64, "parameters"), nullptr);
  EXPECT_EQ(group.allocate(5, at::kHalf).numel(), 5);
  const auto part = group.subgroup({0}, "part");
  EXPECT_FALSE(part->can().one_sided_reads);
  group.abort("enough");
  EXPECT_THAT(message_of([&] { part->barrier("end"); }), HasSubstr("enough"));
}

}  // namespace
}  // namespace tessera::internal
