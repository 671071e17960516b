#include "tessera/tests/support/fake_cuda/fake_cuda.h"

#include <unistd.h>

#include <cstdlib>

#include "tessera/tests/support/fake_cuda/fake_graph.h"
#include "tessera/tests/support/fake_cuda/machine.h"
#include "tessera/tests/support/fake_cuda/memory.h"

namespace tessera::internal::testing {
namespace {

class Control final : public FakeCuda {
 public:
  std::set<int> contexts() override { return machine().contexts(); }
  void forget_contexts() override { machine().forget_contexts(); }
  int current_device() override { return Machine::current(); }
  int events_made() override { return machine().events_made; }
  int events_destroyed() override { return machine().events_destroyed; }
  int events_with_timing() override { return machine().events_with_timing; }
  std::vector<bool> stream_priorities() override { return machine().priorities(); }
  void* current_handle(int device) override { return machine().current_queue(device).handle(); }
  int64_t host_syncs() override { return sum(&Machine::Counts::host_syncs); }
  int64_t host_syncs(int device) override { return machine().counts(device).host_syncs; }
  int64_t operators() override { return sum(&Machine::Counts::operators); }
  int64_t operators(int device) override { return machine().counts(device).operators; }
  int64_t launches(int device) override {
    int64_t all = 0;
    for (const DeviceStream* queue : machine().queues(device)) all += queue->launches();
    return all;
  }

 private:
  static Machine& machine() { return Machine::get(); }
  static int64_t sum(std::atomic<int64_t> Machine::Counts::*count) {
    int64_t all = 0;
    for (int device = 0; device < Machine::kMaxDevices; ++device) {
      all += machine().counts(device).*count;
    }
    return all;
  }
};

}  // namespace
}  // namespace tessera::internal::testing

// The real library gets these from the CUDA runtime.
extern "C" {

tessera::internal::testing::FakeCuda* tessera_fake_cuda() {
  static tessera::internal::testing::Control control;
  return &control;
}

int cudaGetDeviceCount(int* count) {
  if (std::getenv("FAKE_CUDA_STALLS") != nullptr) ::pause();
  *count = tessera::internal::testing::Machine::device_count();
  const int status = static_cast<int>(tessera::internal::testing::number_of("FAKE_CUDA_STATUS", 0));
  return status == 0 && *count == 0 ? 100 : status;
}

const char* cudaGetErrorString(int error) {
  return error == 100 ? "no CUDA-capable device is detected" : "an error that the fake was told of";
}

int cudaDriverGetVersion(int* version) {
  *version = static_cast<int>(tessera::internal::testing::number_of("FAKE_CUDA_DRIVER", 13000));
  return 0;
}

int cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return 0;
}

tessera::internal::testing::FakeGraph* tessera_fake_cuda_graph(int device) {
  return tessera::internal::testing::make_fake_graph(device).release();
}

int cudaStreamIsCapturing(void* stream, int* status) {
  const auto* handle = static_cast<const tessera::internal::testing::HostStreamHandle*>(stream);
  auto& queue = *static_cast<tessera::internal::testing::DeviceStream*>(handle->stream);
  *status = queue.capture() == nullptr ? 0 : 1;
  return 0;
}

int cudaHostRegister(void* data, size_t bytes, unsigned int /*flags*/) {
  tessera::internal::testing::PinnedMemory::get().add(data, bytes);
  return 0;
}

int cudaHostUnregister(void* data) {
  return tessera::internal::testing::PinnedMemory::get().remove(data) ? 0 : 713;
}

}  // extern "C"
