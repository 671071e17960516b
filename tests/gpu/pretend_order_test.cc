// The fake GPU has a GPU's order: queued work runs late, reading without waiting is too early,
// freed memory is poisoned once its stream gets there, and the host's waits are counted.
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/core/process/error_text.h"
#include "tessera/tests/gpu/same_on_both.h"
#include "tessera/tests/support/gate.h"
#include "tessera/tests/support/gpu_for_tests.h"
#include "tessera/tests/support/host_device.h"
#include "tessera/tests/support/rank_processes.h"

namespace tessera::internal::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

const c10::impl::DeviceGuardImplInterface& guard() {
  return *c10::impl::getDeviceGuardImpl(at::kCUDA);
}

c10::Stream new_stream() { return guard().getStreamFromGlobalPool(a_gpu(), false); }

Tensor pinned(int64_t numel, float value) {
  return at::full({numel}, value, at::TensorOptions().pinned_memory(true));
}

bool is_poisoned(const float* data, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) {
    if (!std::isnan(data[i])) return false;
  }
  return true;
}

TEST(PretendOrder, ACopyFromPinnedMemoryIsLateAndAnEventOrdersIt) {
  const Tensor host = pinned(300, 7);
  Tensor to = at::zeros({300}, a_gpu());
  const c10::Stream stream = new_stream();
  c10::Event copied(at::kCUDA);
  Gate gate(stream.native_handle());
  {
    const c10::StreamGuard here(stream);
    to.copy_(host, /*non_blocking=*/true);
    copied.record(stream);
  }
  EXPECT_FALSE(copied.query());
  // The control: reading without waiting is too early.
  EXPECT_EQ(to.sum().item<float>(), 0);
  copied.block(guard().getStream(a_gpu()));
  std::thread([&] { gate.open(); }).join();
  EXPECT_EQ(to.sum().item<float>(), 2100);
  EXPECT_TRUE(copied.query());
}

/// What two streams see of a copy: one does not wait for it, one does.
const RankProcessBody kLateCopy("late_copy", [] {
  const Tensor host = pinned(300, 7);
  Tensor to = at::zeros({300}, a_gpu());
  const c10::Stream stream = new_stream();
  c10::Event copied(at::kCUDA);
  {
    const c10::StreamGuard here(stream);
    to.copy_(host, /*non_blocking=*/true);
    copied.record(stream);
  }
  const auto too_early = to.sum().item<int64_t>();
  copied.block(guard().getStream(a_gpu()));
  const auto in_time = to.sum().item<int64_t>();
  std::printf("%d %d\n", static_cast<int>(too_early), static_cast<int>(in_time));
});

TEST(PretendOrder, DelaysMakeQueuedWorkLate) {
  RankProcessOptions options;
  // Delays are random, up to this time; with this seed the delay is long.
  options.environment = {{"FAKE_CUDA_DELAY_US", "1000000"}, {"FAKE_CUDA_DELAY_SEED", "1"}};
  EXPECT_EQ(run_rank_processes(1, "late_copy", options)[0].output, "0 2100\n");
}

TEST(PretendOrder, ACopyToPinnedMemoryIsLate) {
  const Tensor from = at::full({300}, 7, a_gpu());
  const Tensor host = pinned(300, 1);
  const c10::Stream stream = new_stream();
  Gate gate(stream.native_handle());
  {
    const c10::StreamGuard here(stream);
    host.copy_(from, /*non_blocking=*/true);
  }
  EXPECT_EQ(host.sum().item<float>(), 300);
  gate.open();
  stream.synchronize();
  EXPECT_EQ(host.sum().item<float>(), 2100);
}

TEST(PretendOrder, CopiesConvertAndBroadcastAndKeepStrides) {
  const Tensor host = at::randn({1, 4}).pin_memory();
  Tensor to = at::zeros({4, 3}, at::TensorOptions(a_gpu()).dtype(at::kBFloat16)).t();
  to.copy_(host, /*non_blocking=*/true);
  EXPECT_TRUE(same_bits(at::zeros({4, 3}, at::kBFloat16).t().copy_(host), to));
  const Tensor again = at::empty({3, 4}, at::TensorOptions(a_gpu()).dtype(at::kDouble));
  again.copy_(to);
  EXPECT_TRUE(same_bits(to.cpu().to(at::kDouble).contiguous(), again));
  const at::Device other(at::kCUDA, 3);
  const Tensor there = again.to(other);
  EXPECT_EQ(there.device(), other);
  EXPECT_TRUE(same_bits(again.cpu(), there));
  EXPECT_THROW(to.copy_(at::zeros({5}, a_gpu())), c10::Error);
}

TEST(PretendOrder, AnOperatorWaitsForItsOwnStreamOnly) {
  Tensor a = at::zeros({4}, a_gpu());
  const Tensor one = at::ones({4}, a_gpu());
  const c10::Stream stream = new_stream();
  Gate gate(stream.native_handle());
  {
    const c10::StreamGuard here(stream);
    a.copy_(one);  // on the device: queued
  }
  EXPECT_EQ(a.sum().item<float>(), 0);
  gate.open();
  const c10::StreamGuard here(stream);
  EXPECT_EQ(a.sum().item<float>(), 4);
}

TEST(PretendOrder, FreedMemoryIsLostInTheOrderOfItsStream) {
  const c10::Stream stream = new_stream();
  const Tensor seen = at::zeros({300}, a_gpu());
  const float* freed = nullptr;
  Gate gate(stream.native_handle());
  {
    const c10::StreamGuard here(stream);
    const Tensor from = at::empty({300}, a_gpu());
    EXPECT_TRUE(is_poisoned(from.const_data_ptr<float>(), 300)) << "new memory has no values";
    freed = from.const_data_ptr<float>();
    from.copy_(at::ones({300}).pin_memory(), /*non_blocking=*/true);
    seen.copy_(from);
  }
  gate.open();
  stream.synchronize();
  EXPECT_TRUE(is_poisoned(freed, 300));
  EXPECT_EQ(seen.sum().item<float>(), 300) << "the copy comes first in its stream";
}

/// `seen`, copied by another stream from memory that is freed meanwhile.
float read_on_another_stream(bool is_recorded) {
  const c10::Stream stream = new_stream();
  const Tensor seen = at::zeros({300}, a_gpu());
  Gate gate(stream.native_handle());
  {
    const Tensor from = at::ones({300}, a_gpu());
    if (is_recorded) from.record_stream(stream);
    const c10::StreamGuard here(stream);
    seen.copy_(from);
  }
  gate.open();
  stream.synchronize();
  return seen.sum().item<float>();
}

TEST(PretendOrder, MemoryIsKeptForTheStreamsItIsRecordedOn) {
  EXPECT_EQ(read_on_another_stream(true), 300);
  EXPECT_TRUE(std::isnan(read_on_another_stream(false))) << "the control";
}

TEST(PretendOrder, TheHostsWaitsAreCounted) {
  const Tensor a = at::ones({8}, a_gpu());
  const Tensor b = at::ones({8}, a_gpu());
  const Tensor host = pinned(8, 1);
  const auto syncs = [](const auto& run) {
    const int64_t before = fake_gpu()->host_syncs(a_gpu().index());
    run();
    return fake_gpu()->host_syncs(a_gpu().index()) - before;
  };
  c10::Event event(at::kCUDA);
  event.record(guard().getStream(a_gpu()));
  EXPECT_EQ(syncs([&] { (a + b).matmul(b).mul_(2).view({1}).add_(1); }), 0);
  EXPECT_EQ(syncs([&] { at::zeros({3}, a_gpu()).copy_(at::ones({3}, a_gpu())); }), 0);
  EXPECT_EQ(syncs([&] { a.copy_(host, true); }), 0);
  EXPECT_EQ(syncs([&] { host.copy_(a, true); }), 0);
  EXPECT_EQ(syncs([&] { event.query(); }), 0);
  EXPECT_EQ(syncs([&] { event.block(guard().getStream(a_gpu())); }), 0);
  EXPECT_EQ(syncs([&] { a[0].item<float>(); }), 1);
  EXPECT_EQ(syncs([&] { a.copy_(host); }), 1);
  EXPECT_EQ(syncs([&] { a.cpu(); }), 1);
  EXPECT_EQ(syncs([&] { a.copy_(at::ones({8}), true); }), 1) << "not pinned";
  EXPECT_EQ(syncs([&] { event.synchronize(); }), 1);
  EXPECT_EQ(syncs([&] { guard().getStream(a_gpu()).synchronize(); }), 1);
  EXPECT_EQ(syncs([&] { at::accelerator::synchronizeDevice(a_gpu().index()); }), 1);
  EXPECT_EQ(syncs([&] { a.nonzero(); }), 1);
  EXPECT_EQ(syncs([&] { a.equal(b); }), 1);

  const int64_t all = fake_gpu()->host_syncs();
  const int64_t operators = fake_gpu()->operators(a_gpu().index());
  at::ones({2}, at::Device(at::kCUDA, 2)).sum().item<float>();
  EXPECT_EQ(fake_gpu()->host_syncs(), all + 1);
  EXPECT_EQ(fake_gpu()->operators(a_gpu().index()), operators);
  a.add(b).t().view({8});
  EXPECT_EQ(fake_gpu()->operators(a_gpu().index()), operators + 1) << "views are none";
}

TEST(PretendOrder, BackwardRunsOnTheStreamsOfForward) {
  const c10::Stream stream = new_stream();
  const Tensor host = pinned(64, 3);
  Tensor weight = at::ones({64}, a_gpu()).set_requires_grad(true);
  {
    const c10::StreamGuard here(stream);
    const Tensor input = at::zeros({64}, a_gpu());
    input.copy_(host, /*non_blocking=*/true);
    (weight * input).sum().backward();
  }
  EXPECT_EQ(weight.grad().sum().item<float>(), 192);
}

TEST(PretendOrder, PinnedMemoryIsKnown) {
  const Tensor host = pinned(5, 1);
  EXPECT_TRUE(host.is_pinned());
  EXPECT_TRUE(host.narrow(0, 4, 1).is_pinned());
  EXPECT_FALSE(at::ones({5}).is_pinned());
  EXPECT_TRUE(at::ones({5}).pin_memory().is_pinned());
  EXPECT_TRUE(at::ones({5}, a_gpu()).to(at::kCPU, /*non_blocking=*/true).is_pinned());
}

TEST(PretendOrder, MemoryIsCountedAsTheCachingAllocatorDoes) {
  const c10::DeviceIndex device = 5;
  const at::TensorOptions there(at::Device(at::kCUDA, device));
  const auto bytes = [&] { return at::accelerator::getDeviceStats(device).allocated_bytes[0]; };
  const int64_t before = bytes().current;
  at::accelerator::resetPeakStats(device);
  {
    const Tensor a = at::empty({100}, there);  // 400 bytes take 512
    EXPECT_EQ(bytes().current - before, 512);
    const Tensor b = a + a;
    EXPECT_EQ(bytes().current - before, 1024);
    EXPECT_EQ(at::accelerator::getDeviceStats(device).requested_bytes[0].current - before, 800);
    EXPECT_TRUE(a.view({10, 10}).is_alias_of(a));
    EXPECT_EQ(bytes().current - before, 1024);
  }
  EXPECT_EQ(bytes().current, before);
  EXPECT_EQ(bytes().peak - before, 1024);
  at::accelerator::resetPeakStats(device);
  EXPECT_EQ(bytes().peak, before);
  try {
    at::empty({int64_t{1} << 40}, there);
    ADD_FAILURE() << "4 TiB";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_THAT(error_text(error), HasSubstr("out of memory"));
  }
}

TEST(PretendOrder, TensorsOfSeveralPlacesAreRefused) {
  const Tensor a = at::ones({2}, a_gpu());
  for (const at::Device other : {at::Device(at::kCPU), at::Device(at::kCUDA, 0)}) {
    try {
      at::add(a, at::ones({2}, other));
      ADD_FAILURE() << other;
    } catch (const c10::Error& error) {
      EXPECT_THAT(error_text(error),
                  HasSubstr("Expected all tensors to be on the same device, but found at least two"
                            " devices, cuda:1 and " +
                            other.str()));
    }
  }
}

TEST(PretendOrder, EachDeviceHasItsRandomNumbers) {
  torch::manual_seed(3);
  const Tensor first = at::randn({4}, a_gpu());
  at::randn({4}, at::kCPU);
  const Tensor elsewhere = at::randn({4}, at::Device(at::kCUDA, 2));
  EXPECT_TRUE(at::equal(first.cpu(), elsewhere.cpu())) << "the same seed";
  EXPECT_FALSE(at::equal(at::randn({4}, a_gpu()).cpu(), first.cpu()));
}

}  // namespace
}  // namespace tessera::internal::testing
