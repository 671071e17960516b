#include "tessera/tests/cuda_host/caller_device.h"

#include <cstring>

namespace tessera::internal::testing {
namespace {

class CallerStream final : public Stream {
 public:
  /// The caller has run all earlier work, so the event has happened when this returns.
  void record(Event& event) override {
    undelayed_.current_stream()->record(event);
    wait(event);
  }

  void wait(Event& event) override { event.synchronize(); }

  void copy(void* to, const void* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }

  void copy(const at::Tensor& to, const at::Tensor& from) override { to.copy_(from); }

  /// No work is ever queued here.
  void* handle() override { return nullptr; }

 private:
  HostDevice undelayed_;
};

}  // namespace

CallerDevice::CallerDevice(HostDevice::Options lanes)
    : lanes_(lanes), caller_(std::make_shared<CallerStream>()) {}

}  // namespace tessera::internal::testing
