// CudaDevice over a fake libtorch_cuda that the real loader has found. Nothing here depends on
// CUDA.
#include "tessera/core/device/cuda_device.h"

#include <dlfcn.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/device/cuda_library.h"
#include "tessera/core/process/error_text.h"
#include "tessera/tests/support/fake_cuda/fake_cuda.h"
#include "tessera/tests/support/gate.h"
#include "tessera/tests/support/host_device.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::Gate;
using ::testing::HasSubstr;
using ::testing::IsSubsetOf;

constexpr c10::DeviceIndex kIndex = 2;

class CudaDeviceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto library = load_cuda_library([](const char* name) {
      return std::string(name) == "TESSERA_CUDA_LIBRARIES" ? std::optional<std::string>(FAKE_CUDA)
                                                           : std::nullopt;
    });
    ASSERT_TRUE(library.ok()) << library.status();
    EXPECT_EQ(library->path, FAKE_CUDA "/libtorch_cuda.so");
    EXPECT_EQ(library->device_count, 3);
  }

  static testing::FakeCuda& fake() {
    void* library = ::dlopen(FAKE_CUDA "/libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    return *reinterpret_cast<testing::FakeCuda* (*)()>(::dlsym(library, "tessera_fake_cuda"))();
  }

  static at::Tensor on_host(const at::Tensor& tensor) {
    at::Tensor copy = at::empty(tensor.sizes(), tensor.scalar_type());
    copy.copy_(tensor);
    return copy;
  }

  CudaDevice device_{kIndex};
};

void await(Event& event) {
  while (!event.is_done()) std::this_thread::yield();
}

TEST_F(CudaDeviceTest, IsTheGpuOfItsIndex) {
  EXPECT_EQ(device_.torch_device(), at::Device(at::kCUDA, kIndex));
  const at::Tensor tensor = device_.allocate(5, at::kBFloat16);
  EXPECT_EQ(tensor.device(), device_.torch_device());
  EXPECT_EQ(tensor.scalar_type(), at::kBFloat16);
  EXPECT_EQ(tensor.numel(), 5);
  EXPECT_EQ(device_.allocate(0, at::kInt).numel(), 0);
}

TEST_F(CudaDeviceTest, AnIndexThatIsNotThereIsRefused) {
  for (const int index : {3, -1}) {
    try {
      CudaDevice device(static_cast<c10::DeviceIndex>(index));
      ADD_FAILURE() << "took GPU " << index;
    } catch (const c10::Error& error) {
      EXPECT_THAT(error_text(error), AllOf(HasSubstr("[device] cuda: got index "),
                                           HasSubstr("expected 0 <= index < 3")));
    }
  }
}

TEST_F(CudaDeviceTest, StreamsComeFromLibTorchsPoolsByPriority) {
  const size_t before = fake().stream_priorities().size();
  const auto high = device_.make_stream(Device::Priority::kHigh);
  const auto normal = device_.make_stream(Device::Priority::kDefault);
  EXPECT_NE(high->handle(), normal->handle());
  EXPECT_NE(high->handle(), device_.current_stream()->handle());
  const auto priorities = fake().stream_priorities();
  EXPECT_THAT(std::vector<bool>(priorities.begin() + before, priorities.end()),
              ElementsAre(true, false));
}

TEST_F(CudaDeviceTest, TheCurrentStreamIsTheCallingThreads) {
  const c10::Stream other = c10::impl::getDeviceGuardImpl(at::kCUDA)->getStreamFromGlobalPool(
      device_.torch_device(), /*isHighPriority=*/false);
  void* const usual = device_.current_stream()->handle();
  {
    const c10::StreamGuard guard(other);
    EXPECT_EQ(device_.current_stream()->handle(), other.native_handle());
    std::thread([&] { EXPECT_EQ(device_.current_stream()->handle(), usual); }).join();
  }
  EXPECT_EQ(device_.current_stream()->handle(), usual);
}

TEST_F(CudaDeviceTest, AnEventIsDoneBeforeItIsRecordedAndOnlyAfterWhatItMarks) {
  const auto stream = device_.make_stream(Device::Priority::kHigh);
  const auto event = device_.make_event();
  EXPECT_TRUE(event->is_done());
  device_.current_stream()->wait(*event);  // the event was never recorded
  Gate gate(stream->handle());
  stream->record(*event);
  EXPECT_FALSE(event->is_done());
  gate.open();
  await(*event);
  stream->record(*event);  // records it again
  await(*event);
  EXPECT_EQ(fake().events_with_timing(), 0) << "timing makes events slow";
}

/// Stream A writes 1 over 0 after the gate opens; stream B copies it, and a reader of B's result
/// returns it. Without the wait B reads first.
int64_t read_across_streams(CudaDevice& device, bool waits) {
  const at::Tensor one = device.allocate(1, at::kLong);
  const at::Tensor middle = device.allocate(1, at::kLong);
  const at::Tensor seen = device.allocate(1, at::kLong);
  one.copy_(at::ones({1}, at::kLong));
  middle.copy_(at::zeros({1}, at::kLong));
  seen.copy_(at::full({1}, -1, at::kLong));
  const auto a = device.make_stream(Device::Priority::kDefault);
  const auto b = device.make_stream(Device::Priority::kHigh);
  const auto written = device.make_event();
  const auto read = device.make_event();
  Gate gate(a->handle());
  a->copy(middle.data_ptr(), one.data_ptr(), 8);
  a->record(*written);
  if (waits) b->wait(*written);
  b->copy(seen.data_ptr(), middle.data_ptr(), 8);
  b->record(*read);
  if (waits) {
    EXPECT_FALSE(read->is_done());
  } else {
    await(*read);  // so B did not wait, however fast the threads are
  }
  gate.open();
  await(*read);
  await(*written);
  at::Tensor value = at::empty({1}, at::kLong);
  value.copy_(seen);
  return value.item<int64_t>();
}

TEST_F(CudaDeviceTest, AStreamThatWaitsSeesWhatTheOtherWrote) {
  EXPECT_EQ(read_across_streams(device_, true), 1);
}

TEST_F(CudaDeviceTest, AMissingWaitIsSeen) {  // the control of the test above
  EXPECT_EQ(read_across_streams(device_, false), 0);
}

TEST_F(CudaDeviceTest, ACopyRunsOnItsStreamAndLeavesTheThreadAsItWas) {
  const at::Tensor from = device_.allocate(300, at::kFloat);
  const at::Tensor to = device_.allocate(300, at::kFloat);
  from.copy_(at::arange(300, at::kFloat));
  to.copy_(at::zeros({300}));
  const auto stream = device_.make_stream(Device::Priority::kDefault);
  const auto copied = device_.make_event();
  void* const current = fake().current_handle(kIndex);
  Gate gate(stream->handle());
  stream->copy(to.data_ptr(), from.data_ptr(), from.nbytes());
  stream->copy(to.data_ptr(), from.data_ptr(), 0);
  EXPECT_EQ(fake().current_handle(kIndex), current);
  EXPECT_TRUE(at::equal(on_host(to), at::zeros({300}))) << "the gate is closed";
  gate.open();
  stream->record(*copied);
  await(*copied);
  EXPECT_TRUE(at::equal(on_host(to), at::arange(300, at::kFloat)));
}

/// Makes every call that a thread may make, on GPU kIndex.
void use(CudaDevice& device) {
  const at::Tensor memory = device.allocate(2, at::kLong);
  const auto stream = device.make_stream(Device::Priority::kHigh);
  const auto event = device.make_event();
  stream->record(*event);
  device.current_stream()->wait(*event);
  device.current_stream()->record(*event);
  stream->copy(memory.data_ptr(), memory.const_data_ptr<int64_t>() + 1, 8);
  stream->record(*event);
  await(*event);
}

TEST_F(CudaDeviceTest, AThreadOfAnotherGpuKeepsItAndMakesNoContextThere) {
  fake().forget_contexts();
  std::thread([&] {
    ASSERT_EQ(fake().current_device(), 0);
    use(device_);
    EXPECT_EQ(fake().current_device(), 0);
  }).join();
  EXPECT_THAT(fake().contexts(), IsSubsetOf({static_cast<int>(kIndex)}));

  // The control: c10's own calls, used directly, make a context on GPU 0.
  std::thread([&] {
    const c10::Stream stream =
        c10::impl::getDeviceGuardImpl(at::kCUDA)->getStream(device_.torch_device());
    c10::Event(at::kCUDA).record(stream);
  }).join();
  EXPECT_THAT(fake().contexts(), ::testing::Contains(0));
}

TEST_F(CudaDeviceTest, MakingItCurrentIsForTheCallingThread) {
  std::thread([&] {
    device_.make_current();
    EXPECT_EQ(fake().current_device(), kIndex);
    use(device_);
    EXPECT_EQ(fake().current_device(), kIndex);
  }).join();
  std::thread([&] { EXPECT_EQ(fake().current_device(), 0); }).join();
}

TEST_F(CudaDeviceTest, EventsAreGivenBack) {
  const int made = fake().events_made();
  const int destroyed = fake().events_destroyed();
  const auto unused = device_.make_event();
  for (int i = 0; i < 3; ++i) use(device_);
  EXPECT_EQ(fake().events_made() - made, 3);
  EXPECT_EQ(fake().events_destroyed() - destroyed, 3);
}

TEST_F(CudaDeviceTest, OneThreadMayAskWhileAnotherRecords) {
  const auto event = device_.make_event();
  const auto stream = device_.make_stream(Device::Priority::kDefault);
  std::atomic<bool> is_over{false};
  std::thread watcher([&] {
    while (!is_over) event->is_done();
  });
  for (int i = 0; i < 1000; ++i) stream->record(*event);
  is_over = true;
  watcher.join();
  await(*event);
  EXPECT_TRUE(event->is_done());
}

}  // namespace
}  // namespace tessera::internal
