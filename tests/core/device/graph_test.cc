// Graphs over the fake libtorch_cuda.so: LibTorch's own autograd, guards and operators, captured by
// CUDA's rules. This checks what holds for every backend; whether LibTorch's real class behaves so
// needs a GPU.
#include "tessera/core/device/graph.h"

#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/device/cuda_device.h"
#include "tessera/core/device/cuda_library.h"
#include "tessera/core/process/error_text.h"
#include "tessera/tests/support/gate.h"
#include "tessera/tests/support/host_device.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/same_bits.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using testing::Gate;
using ::testing::HasSubstr;
using testing::have_same_bits;
using testing::HostStreamHandle;
using testing::message_of;

constexpr c10::DeviceIndex kGpu = 1;
const at::Device kPlace(at::kCUDA, kGpu);

at::Tensor on_host(const at::Tensor& tensor) { return tensor.detach().to(at::kCPU); }

c10::Stream current_stream() { return c10::impl::getDeviceGuardImpl(at::kCUDA)->getStream(kPlace); }

c10::Stream other_stream() {
  return c10::impl::getDeviceGuardImpl(at::kCUDA)->getStreamFromGlobalPool(kPlace, false);
}

class GraphTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto library = load_cuda_library([](const char* name) {
      return std::string(name) == "TESSERA_CUDA_LIBRARIES" ? std::optional<std::string>(FAKE_CUDA)
                                                           : std::nullopt;
    });
    ASSERT_TRUE(library.ok()) << library.status();
    ::setenv("TESSERA_CUDA_GRAPH_MODULE", FAKE_CUDA_GRAPH, /*overwrite=*/1);
  }

  void SetUp() override { device_.make_current(); }

  static at::TensorOptions options() { return at::TensorOptions(at::kFloat).device(kPlace); }

  /// 0, 1, ... in fp32.
  static at::Tensor numbers(int64_t numel) { return at::arange(numel, options()); }

  CudaDevice device_{kGpu};
};

TEST_F(GraphTest, NothingRunsInACapture) {
  at::Tensor sum = at::zeros({3}, options());
  const auto graph = make_graph(kPlace);
  graph->begin();
  const at::Tensor fresh = sum + 5;
  const at::Tensor filled = at::full({3}, 7, options());
  sum.add_(1);
  sum.copy_(sum * 2);
  graph->end();
  EXPECT_TRUE(have_same_bits(sum, at::zeros({3})));
  EXPECT_TRUE(on_host(fresh).isnan().all().item<bool>());
  EXPECT_TRUE(on_host(filled).isnan().all().item<bool>());
  graph->replay();
  EXPECT_TRUE(have_same_bits(sum, at::full({3}, 2.0F)));
  EXPECT_TRUE(have_same_bits(fresh, at::full({3}, 5.0F)));
  EXPECT_TRUE(have_same_bits(filled, at::full({3}, 7.0F)));
  graph->replay();
  EXPECT_TRUE(have_same_bits(sum, at::full({3}, 6.0F)));
  EXPECT_TRUE(have_same_bits(fresh, at::full({3}, 7.0F)));
}

TEST_F(GraphTest, WhatWaitsOnTheHostIsRefusedAndTheCaptureFails) {
  const at::Tensor one = at::ones({1}, options());
  const std::vector<std::pair<const char*, std::function<void(const at::Tensor&)>>> calls = {
      {"item", [](const at::Tensor& t) { t.item<float>(); }},
      {"copy to the host", [](const at::Tensor& t) { t.to(at::kCPU); }},
      {"copy from the host", [](const at::Tensor&) { at::ones({2}).to(kPlace); }},
      {"shapes from data", [](const at::Tensor& t) { t.nonzero(); }},
      {"stream", [](const at::Tensor&) { current_stream().synchronize(); }},
      {"stream query", [](const at::Tensor&) { current_stream().query(); }},
      {"device",
       [](const at::Tensor&) {
         c10::impl::getDeviceGuardImpl(at::kCUDA)->synchronizeDevice(kGpu);
       }},
  };
  for (const auto& each : calls) {
    const auto& [name, call] = each;
    const c10::Stream caller = current_stream();
    const auto graph = make_graph(kPlace);
    graph->begin();
    const at::Tensor two = one * 2;
    EXPECT_THAT(message_of([&, &call = each.second] { call(two); }),
                HasSubstr("operation not permitted when stream is capturing"))
        << name;
    EXPECT_THAT(
        message_of([&] { graph->end(); }),
        AllOf(HasSubstr("[graph] end: got 'CUDA error: operation not permitted when stream "
                        "is capturing', expected code that can be captured"),
              HasSubstr("take what reads tensors on the host"), HasSubstr("train without graphs")))
        << name;
    EXPECT_EQ(current_stream(), caller) << name;
    EXPECT_FALSE(is_capturing()) << name;
    EXPECT_THAT(message_of([&] { graph->replay(); }),
                HasSubstr("[graph] replay: got a graph without a capture that ended well"))
        << name;
    EXPECT_EQ((one * 3).item<float>(), 3.0F) << "the stream works again after " << name;
  }
}

TEST_F(GraphTest, TheHostMayNotAskForAnEventOfACapture) {
  for (const bool waits : {false, true}) {
    const auto graph = make_graph(kPlace);
    const auto event = device_.make_event();
    graph->begin();
    device_.current_stream()->record(*event);
    EXPECT_THAT(message_of([&] { waits ? event->synchronize() : void(event->is_done()); }),
                HasSubstr("an event last recorded in a capturing stream"));
    EXPECT_THAT(message_of([&] { graph->end(); }),
                HasSubstr("last recorded in a capturing stream"));
    device_.current_stream()->record(*event);
    event->synchronize();
  }
}

// As the thread that watches collectives does.
TEST_F(GraphTest, AnotherThreadMayAskForOtherEventsMeanwhile) {
  const auto lane = device_.make_stream(Device::Priority::kHigh);
  const auto event = device_.make_event();
  const auto graph = make_graph(kPlace);
  graph->begin();
  std::thread([&] {
    lane->record(*event);
    event->synchronize();
    EXPECT_TRUE(event->is_done());
  }).join();
  graph->end();
}

TEST_F(GraphTest, BeginIsBehindTheCallersStreamAndTheCallerBehindEnd) {
  const c10::Stream caller = other_stream();
  const c10::StreamGuard guard(caller);
  {
    const auto graph = make_graph(kPlace);
    Gate gate(caller.native_handle());
    graph->begin();
    EXPECT_EQ(current_stream(), graph->stream());
    graph->end();
    EXPECT_EQ(current_stream(), caller);
    EXPECT_FALSE(graph->stream().query());
    gate.open();
    graph->stream().synchronize();
  }
  {
    const auto graph = make_graph(kPlace);
    Gate gate(graph->stream().native_handle());
    graph->begin();
    graph->end();
    EXPECT_FALSE(caller.query());
    gate.open();
    caller.synchronize();
  }
}

TEST_F(GraphTest, AReplayIsQueuedOnTheCurrentStream) {
  at::Tensor sum = at::zeros({3}, options());
  const auto graph = make_graph(kPlace);
  graph->begin();
  sum.add_(1);
  graph->end();
  const c10::Stream stream = other_stream();
  {
    const c10::StreamGuard guard(stream);
    Gate gate(stream.native_handle());
    graph->replay();  // returns although nothing has run
    EXPECT_FALSE(stream.query());
    gate.open();
    stream.synchronize();
  }
  EXPECT_TRUE(have_same_bits(sum, at::ones({3})));
}

TEST_F(GraphTest, StreamsThatComeBackAreCapturedToo) {
  const at::Tensor input = numbers(6);
  at::Tensor there = at::zeros({6}, options());
  const auto side = device_.make_stream(Device::Priority::kHigh);
  const auto forth = device_.make_event();
  const auto back = device_.make_event();
  const auto graph = make_graph(kPlace);
  graph->begin();
  const at::Tensor doubled = input * 2;
  device_.current_stream()->record(*forth);
  side->wait(*forth);
  side->copy(there, doubled);
  side->record(*back);
  device_.current_stream()->wait(*back);
  const at::Tensor result = there + 1;
  graph->end();
  EXPECT_TRUE(have_same_bits(there, at::zeros({6})));
  graph->replay();
  EXPECT_TRUE(have_same_bits(result, at::arange(6, at::kFloat) * 2 + 1));
}

TEST_F(GraphTest, AStreamThatDoesNotComeBackIsRefused) {
  at::Tensor there = at::zeros({6}, options());
  const at::Tensor input = numbers(6);
  const auto side = device_.make_stream(Device::Priority::kDefault);
  const auto forth = device_.make_event();
  const auto graph = make_graph(kPlace);
  graph->begin();
  device_.current_stream()->record(*forth);
  side->wait(*forth);
  side->copy(there, input);
  EXPECT_THAT(message_of([&] { graph->end(); }), HasSubstr("capturing stream has unjoined work"));
}

TEST_F(GraphTest, WorkFromBeforeCannotBeWaitedForInside) {
  const auto lane = device_.make_stream(Device::Priority::kHigh);
  const auto event = device_.make_event();
  lane->record(*event);
  const auto graph = make_graph(kPlace);
  graph->begin();
  EXPECT_THAT(message_of([&] { device_.current_stream()->wait(*event); }),
              HasSubstr("dependency created on uncaptured work in another stream"));
  EXPECT_THAT(message_of([&] { graph->end(); }), HasSubstr("uncaptured work"));
}

// Note [Backward in a capture].
TEST_F(GraphTest, NodesOfParametersThatWereMadeOnTheDefaultStreamBreakBackward) {
  at::Tensor leaf = at::ones({2}, options()).set_requires_grad(true);
  const at::Tensor keeps_node = leaf * 2;
  const auto graph = make_graph(kPlace);
  graph->begin();
  EXPECT_THAT(message_of([&] { (leaf * 3).sum().backward(); }), HasSubstr("legacy stream"));
  EXPECT_THAT(message_of([&] { graph->end(); }), HasSubstr("legacy stream"));
}

// As libtessera_cuda.so queues kernels.
TEST_F(GraphTest, WorkBesideLibTorchIsCapturedIfItMayRunOften) {
  static int runs;
  static int drops;
  runs = drops = 0;
  auto graph = make_graph(kPlace);
  graph->begin();
  const auto* handle = static_cast<HostStreamHandle*>(current_stream().native_handle());
  ASSERT_NE(handle->enqueue_repeatable, nullptr);
  handle->enqueue_repeatable(
      handle->stream, [](void* count) { ++*static_cast<int*>(count); },
      [](void* /*count*/) { ++drops; }, &runs);
  graph->end();
  EXPECT_EQ(runs, 0);
  for (int i = 0; i < 3; ++i) graph->replay();
  current_stream().synchronize();
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(drops, 0);
  graph.reset();
  current_stream().synchronize();
  EXPECT_EQ(drops, 1);

  const auto once = make_graph(kPlace);
  once->begin();
  const auto* other = static_cast<HostStreamHandle*>(current_stream().native_handle());
  EXPECT_THAT(message_of([&] {
                other->enqueue(
                    other->stream, [](void*) { ++runs; }, nullptr);
              }),
              HasSubstr("operation not permitted when stream is capturing"));
  EXPECT_NE(message_of([&] { once->end(); }), "none");
  EXPECT_EQ(runs, 3);
}

TEST_F(GraphTest, ACaptureThatIsGivenUpLeavesTheCallerAsItWas) {
  const c10::Stream caller = current_stream();
  at::Tensor sum = at::zeros({2}, options());
  {
    const auto graph = make_graph(kPlace);
    graph->begin();
    sum.add_(1);
  }
  EXPECT_EQ(current_stream(), caller);
  EXPECT_FALSE(is_capturing());
  EXPECT_TRUE(have_same_bits(sum.add_(3), at::full({2}, 3.0F)));
}

TEST_F(GraphTest, CallsOutOfOrderAreRefused) {
  const auto graph = make_graph(kPlace);
  EXPECT_THAT(message_of([&] { graph->replay(); }),
              HasSubstr("[graph] replay: got a graph without a capture that ended well, expected "
                        "one; call begin() and end() first"));
  EXPECT_THAT(message_of([&] { graph->end(); }),
              HasSubstr("[graph] end: got no capture, expected one; call begin()"));
  graph->begin();
  const auto inner = make_graph(kPlace);
  EXPECT_THAT(message_of([&] { inner->begin(); }),
              HasSubstr("[graph] begin: got a current stream that is being captured, expected one "
                        "that is not; end that capture first"));
  std::thread([&] {
    EXPECT_THAT(message_of([&] { graph->end(); }),
                HasSubstr("[graph] end: got another thread than begin(), expected the same"));
  }).join();
  graph->end();
  EXPECT_THAT(message_of([&] { graph->begin(); }),
              HasSubstr("[graph] begin: got a second call, expected one per graph; make another"));
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kCUDA)}) {
    EXPECT_THAT(message_of([&] { make_graph(device); }),
                HasSubstr("expected a GPU with an index (cuda:0)"));
  }
}

}  // namespace
}  // namespace tessera::internal
